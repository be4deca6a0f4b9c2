package main

import (
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// keysMax is the maximum number of keys checked together.
const keysMax = 4

// values holds the values of a group's keys, in the order of their names; "" is no value, since written
// values are never empty. An array, so that == compares the contents.
type values [keysMax]string

// notANumber is the reply to INCR-EXISTING of such a value.
const notANumber = "not a number"

// modelOf returns the model of a store with the keys of a group.
func modelOf(keys []string) porcupine.Model {
	index := map[string]int{}
	for i, key := range keys {
		index[key] = i
	}
	seed := maphash.MakeSeed()
	return porcupine.Model{
		Init: func() interface{} { return values{} },
		Step: func(state, input, output interface{}) (bool, interface{}) {
			ok, after := step(index, state.(values), input.(*operation), output.([]*string))
			return ok, after
		},
		Hash: func(state interface{}) uint64 {
			var hash maphash.Hash
			hash.SetSeed(seed)
			for _, value := range state.(values) {
				hash.WriteString(value)
				hash.WriteByte(0)
			}
			return hash.Sum64()
		},
		DescribeOperation: func(input, output interface{}) string {
			return describe(input.(*operation), output.([]*string))
		},
		DescribeState: func(state interface{}) string {
			parts := make([]string, len(keys))
			for i, key := range keys {
				parts[i] = key + " = " + shown(state.(values)[i])
			}
			return strings.Join(parts, ", ")
		},
	}
}

// step executes an operation. Without replies its outcome is unknown: any answer is possible, including
// that a CHECK found another value and nothing was done.
func step(index map[string]int, before values, op *operation, replies []*string) (bool, values) {
	after, known := before, replies != nil
	for i, c := range op.Commands {
		value := &after[index[c.Key]]
		var reply string
		switch c.Verb {
		case "CHECK":
			if *value != orEmpty(c.Value) {
				return !known, before
			}
			continue
		case "GET":
			reply = *value
		case "SET":
			*value, reply = *c.Value, "OK"
		case "INCR":
			number := 0
			if *value != "" {
				var err error
				if number, err = strconv.Atoi(*value); err != nil {
					return !known, before
				}
			}
			*value = strconv.Itoa(number + 1)
			reply = *value
		case "INCR-EXISTING":
			if *value == "" {
				break // no value, and no reply
			}
			number, err := strconv.Atoi(*value)
			if err != nil {
				reply = notANumber
				break
			}
			*value = strconv.Itoa(number + 1)
			reply = *value
		case "ADD":
			reply = "0"
			if *value == "" {
				*value, reply = *c.Value, "1"
			}
		case "APPEND":
			reply = "0"
			if *value != "" {
				*value, reply = *value+*c.Value, "1"
			}
		case "REMOVE":
			*value, reply = "", "OK"
		case "DEL":
			reply = "1"
			if *value == "" {
				reply = "0"
			}
			*value = ""
		}
		if known && orEmpty(replies[i]) != reply {
			return false, before
		}
	}
	return true, after
}

func orEmpty(value *string) string {
	if value == nil {
		return ""
	}
	return *value
}

func shown(value string) string {
	if value == "" {
		return "nil"
	}
	return value
}

// describe returns an operation in words: "SET a 5; INCR b -> OK; 8".
func describe(op *operation, replies []*string) string {
	var said, answered []string
	for i, c := range op.Commands {
		text := c.Verb + " " + c.Key
		if c.Value != nil || c.Verb == "CHECK" {
			text += " " + shown(orEmpty(c.Value))
		}
		said = append(said, text)
		if replies != nil && c.Verb != "CHECK" {
			answered = append(answered, shown(orEmpty(replies[i])))
		}
	}
	if replies == nil {
		answered = []string{"?"}
	}
	return strings.Join(said, "; ") + " -> " + strings.Join(answered, "; ")
}

// repliesOf returns the output for the model: nil if the outcome is unknown.
func repliesOf(op *operation) []*string {
	if op.Outcome == outcomeUnknown {
		return nil
	}
	return op.Replies
}

// toPorcupine ends operations of unknown outcome after all others. For the check this equals never, and
// it is easier to read in a picture than the end of time.
func toPorcupine(ops []*operation) []porcupine.Operation {
	var last int64
	for _, op := range ops {
		if op.CallNs > last {
			last = op.CallNs
		}
		if op.Outcome == outcomeOK && op.ReturnNs > last {
			last = op.ReturnNs
		}
	}
	history := make([]porcupine.Operation, len(ops))
	for i, op := range ops {
		end := op.ReturnNs
		if op.Outcome == outcomeUnknown {
			end = last + 1
		}
		history[i] = porcupine.Operation{
			ClientId: op.Process,
			Input:    op,
			Output:   repliesOf(op),
			Call:     op.CallNs,
			Return:   end,
			Metadata: fmt.Sprintf("operation %d at %s", op.ID, op.Replica),
		}
	}
	return history
}

// check returns Porcupine's verdict on operations that have keys in common.
func check(ops []*operation, limit time.Duration) porcupine.CheckResult {
	ops = prune(ops)
	return porcupine.CheckOperationsTimeout(modelOf(keysOf(ops)), toPorcupine(ops), limit)
}

// draw writes Porcupine's picture of them.
func draw(ops []*operation, limit time.Duration, path string) error {
	ops = prune(ops)
	model := modelOf(keysOf(ops))
	_, info := porcupine.CheckOperationsVerbose(model, toPorcupine(ops), limit)
	return porcupine.VisualizePath(model, info, path)
}
