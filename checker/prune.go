package main

import (
	"math"
	"strconv"
	"strings"
)

// prune leaves out operations of unknown outcome that write what nobody saw afterwards. Whether they
// took effect makes no difference to anyone, and each of them would double the orders to be tried: if
// the history with them is linearizable, it is so without them (nobody saw the difference), and the
// other way round (they may come last).
func prune(ops []*operation) []*operation {
	increments := map[string]int{}
	for _, op := range ops {
		for _, c := range op.Commands {
			if c.Verb == "INCR" || c.Verb == "INCR-EXISTING" {
				increments[c.Key]++
			}
		}
	}
	var kept []*operation
	for _, op := range ops {
		if op.Outcome != outcomeUnknown || isSeen(op, ops, increments) {
			kept = append(kept, op)
		}
	}
	return kept
}

// isSeen: somebody saw, or may have seen, what an operation leaves in some key.
func isSeen(op *operation, ops []*operation, increments map[string]int) bool {
	left := map[string]string{}
	for _, c := range op.Commands {
		switch c.Verb {
		case "SET", "ADD":
			left[c.Key] = *c.Value
		case "DEL", "REMOVE":
			left[c.Key] = ""
		case "INCR", "INCR-EXISTING", "APPEND":
			return true // what it leaves depends on what was there
		}
	}
	for _, other := range ops {
		isLater := other.Outcome == outcomeUnknown || other.ReturnNs >= op.CallNs
		if other == op || !isLater {
			continue
		}
		for i, c := range other.Commands {
			value, written := left[c.Key]
			if written && sees(other, i, value, increments[c.Key]) {
				return true
			}
		}
	}
	return false
}

// sees: command i of an operation may have found this value, or one that increments made of it.
func sees(op *operation, i int, value string, increments int) bool {
	c := op.Commands[i]
	if c.Verb == "CHECK" {
		return isFrom(orEmpty(c.Value), value, increments)
	}
	if op.Outcome == outcomeUnknown {
		return false
	}
	reply := orEmpty(op.Replies[i])
	switch c.Verb {
	case "GET", "INCR":
		return isFrom(reply, value, increments)
	case "DEL", "ADD", "APPEND", "INCR-EXISTING":
		// It tells whether there was something, unless that is known from a command before it.
		for _, earlier := range op.Commands[:i] {
			if earlier.Key == c.Key && earlier.Verb != "CHECK" {
				return false
			}
		}
		return true
	}
	return false
}

func isFrom(found, value string, increments int) bool {
	if found == value {
		return true
	}
	// Something was appended to it, or to nothing after it.
	if text, _, isAppended := strings.Cut(found, ","); isAppended {
		found = text
	}
	number, first := toNumber(found), toNumber(value)
	return number >= first && number <= first+float64(increments)
}

// toNumber: what INCR takes a value for; nothing is 0, and what is no number is like no other.
func toNumber(value string) float64 {
	if value == "" {
		return 0
	}
	number, err := strconv.Atoi(value)
	if err != nil {
		return math.NaN()
	}
	return float64(number)
}
