package main

import (
	"math"
	"strconv"
	"strings"
)

// prune leaves out operations of unknown outcome whose writes nothing saw afterwards. Whether they took
// effect makes no difference, and each of them would double the number of orders to try. If the history
// with them is linearizable, it is linearizable without them (nothing saw the difference), and vice
// versa (they may come last).
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

// isSeen reports whether an operation saw, or may have seen, what this one leaves in some key.
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

// sees reports whether command i of an operation may have found this value, or one that increments made
// of it.
func sees(op *operation, i int, value string, increments int) bool {
	c := op.Commands[i]
	if c.Verb == "CHECK" {
		return isFrom(orEmpty(c.Value), value, increments)
	}
	if c.Verb == "ADD" && value == "" {
		return true // only a missing value lets it write, whether or not it was answered
	}
	if op.Outcome == outcomeUnknown {
		return false
	}
	reply := orEmpty(op.Replies[i])
	switch c.Verb {
	case "GET", "INCR":
		return isFrom(reply, value, increments)
	case "DEL", "ADD", "APPEND", "INCR-EXISTING":
		// Its reply tells whether there was a value, unless an earlier command already determines that.
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
	// A value was appended to it, or to no value after it.
	if text, _, isAppended := strings.Cut(found, ","); isAppended {
		found = text
	}
	number, first := toNumber(found), toNumber(value)
	return number >= first && number <= first+float64(increments)
}

// toNumber returns the number that INCR takes a value for: no value is 0, and a value that is not a
// number equals no other.
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
