package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"sort"
)

// Outcomes of an operation.
const (
	outcomeOK      = "ok"      // it was answered
	outcomeFailed  = "failed"  // it certainly had and will have no effect
	outcomeUnknown = "unknown" // it may take effect at any time after its call, or never
)

// lineMaxBytes is the maximum length of a line of a history.
const lineMaxBytes = 1 << 20

// command is one part of an operation. All commands of an operation take effect atomically.
type command struct {
	// GET, SET, INCR, DEL, REMOVE (a DEL whose reply does not tell whether there was a value), or CHECK:
	// the operation has an effect only if Key holds Value. ADD is a SET if there is no value; APPEND
	// appends to a value and INCR-EXISTING increments it, if there is one. The replies of these three tell
	// whether there was.
	Verb string `json:"verb"`
	Key  string `json:"key"`
	// The value that SET, ADD and APPEND write and CHECK compares with; null is "no value".
	Value *string `json:"value,omitempty"`
}

// operation is a line of a history with "kind":"operation". The other lines are for the report.
type operation struct {
	Kind    string `json:"kind"`
	ID      int    `json:"id"`
	Process int    `json:"process"`
	// Operations of different groups have no key in common.
	Group    string    `json:"group"`
	CallNs   int64     `json:"call_ns"`
	ReturnNs int64     `json:"return_ns"`
	Outcome  string    `json:"outcome"`
	Commands []command `json:"commands"`
	// Of a successful operation: one reply per command, none for CHECK (null).
	Replies []*string `json:"replies,omitempty"`
	// The host that was asked; not used here but included in the output.
	Replica string `json:"replica,omitempty"`
	Reads   string `json:"reads,omitempty"`
}

func (o *operation) onlyReads() bool {
	for _, c := range o.Commands {
		if c.Verb != "GET" && c.Verb != "CHECK" {
			return false
		}
	}
	return true
}

// check rejects what a recorder must not write.
func (o *operation) check() error {
	if len(o.Commands) == 0 {
		return fmt.Errorf("operation %d has no commands", o.ID)
	}
	for _, c := range o.Commands {
		switch c.Verb {
		case "GET", "INCR", "INCR-EXISTING", "DEL", "REMOVE", "CHECK":
		case "SET", "ADD", "APPEND":
			if c.Value == nil {
				return fmt.Errorf("operation %d: %s without a value", o.ID, c.Verb)
			}
		default:
			return fmt.Errorf("operation %d: unknown command %q", o.ID, c.Verb)
		}
	}
	switch o.Outcome {
	case outcomeOK:
		if len(o.Replies) != len(o.Commands) {
			return fmt.Errorf("operation %d: %d commands, %d replies", o.ID, len(o.Commands), len(o.Replies))
		}
		if o.ReturnNs < o.CallNs {
			return fmt.Errorf("operation %d ended before it began", o.ID)
		}
	case outcomeFailed, outcomeUnknown:
	default:
		return fmt.Errorf("operation %d: unknown outcome %q", o.ID, o.Outcome)
	}
	return nil
}

// readHistory returns all operations by group, and the number of each outcome. Failed operations, and
// unanswered ones that only read, have no effect and constrain nothing: they are counted and left out.
func readHistory(from io.Reader) (map[string][]*operation, map[string]int, error) {
	groups, outcomes := map[string][]*operation{}, map[string]int{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, lineMaxBytes)
	for number := 1; lines.Scan(); number++ {
		op := &operation{}
		if err := json.Unmarshal(lines.Bytes(), op); err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", number, err)
		}
		if op.Kind != "operation" {
			continue
		}
		if err := op.check(); err != nil {
			return nil, nil, fmt.Errorf("line %d: %w", number, err)
		}
		outcomes[op.Outcome]++
		if op.Outcome == outcomeFailed || (op.Outcome == outcomeUnknown && op.onlyReads()) {
			continue
		}
		groups[op.Group] = append(groups[op.Group], op)
	}
	if err := lines.Err(); err != nil {
		return nil, nil, err
	}
	for name, group := range groups {
		group := group
		sort.SliceStable(group, func(i, j int) bool { return group[i].CallNs < group[j].CallNs })
		if n := len(keysOf(group)); n > keysMax {
			return nil, nil, fmt.Errorf("group %s has %d keys; at most %d are checked together", name, n, keysMax)
		}
	}
	return groups, outcomes, nil
}

// keysOf returns the keys of some operations, in order.
func keysOf(ops []*operation) []string {
	seen := map[string]bool{}
	for _, op := range ops {
		for _, c := range op.Commands {
			seen[c.Key] = true
		}
	}
	keys := make([]string, 0, len(seen))
	for key := range seen {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	return keys
}
