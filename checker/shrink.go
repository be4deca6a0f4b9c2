package main

import (
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// startsTriedInARow: see latestStart.
const startsTriedInARow = 16

// shrink looks for a short history within one that is not linearizable. No step can turn a linearizable
// history into one that is not, so what remains is a violation by itself. Steps remove keys (an order
// of all commands is also one of each key's), everything after some moment, operations that only read,
// and operations that ended before a value was certainly written.
func shrink(ops []*operation, limit time.Duration) []*operation {
	deadline := time.Now().Add(limit)
	illegal := func(ops []*operation) bool {
		left := time.Until(deadline)
		return left > 0 && check(ops, left) == porcupine.Illegal
	}
	ops = shortestPrefix(prune(ops), illegal)
	for _, key := range keysOf(ops) {
		if of := project(ops, key); illegal(of) {
			ops = shortestPrefix(of, illegal)
			break
		}
	}
	if len(keysOf(ops)) == 1 {
		ops = latestStart(ops, illegal)
	}
	return prune(withoutReads(ops, illegal))
}

// before is the history as it was known at a moment: operations unanswered by then may still take
// effect.
func before(ops []*operation, moment int64) []*operation {
	var known []*operation
	for _, op := range ops {
		if op.CallNs > moment {
			continue
		}
		if op.Outcome == outcomeOK && op.ReturnNs > moment {
			if op.onlyReads() {
				continue
			}
			op = weakened(op)
		}
		known = append(known, op)
	}
	return known
}

func weakened(op *operation) *operation {
	weak := *op
	weak.Outcome, weak.Replies = outcomeUnknown, nil
	return &weak
}

// shortestPrefix returns the prefix that ends with the answer that makes it a violation.
func shortestPrefix(ops []*operation, illegal func([]*operation) bool) []*operation {
	ends := []int64{}
	for _, op := range ops {
		if op.Outcome == outcomeOK {
			ends = append(ends, op.ReturnNs)
		}
	}
	sort.Slice(ends, func(i, j int) bool { return ends[i] < ends[j] })
	low, high := 0, len(ends)-1
	for low < high {
		middle := (low + high) / 2
		if illegal(before(ops, ends[middle])) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	if high < 0 {
		return ops
	}
	if prefix := before(ops, ends[high]); illegal(prefix) {
		return prefix
	}
	return ops
}

// project reduces each operation to what it does to one key.
func project(ops []*operation, key string) []*operation {
	var projected []*operation
	for _, op := range ops {
		of := *op
		of.Commands, of.Replies = nil, nil
		for i, c := range op.Commands {
			if c.Key == key {
				of.Commands = append(of.Commands, c)
				if op.Outcome == outcomeOK {
					of.Replies = append(of.Replies, op.Replies[i])
				}
			}
		}
		if len(of.Commands) > 0 {
			projected = append(projected, &of)
		}
	}
	return projected
}

// latestStart drops what had ended before a value was certainly written: the write replaced it,
// whatever it was. Of the operations concurrent with that write, reads are dropped and writes may or
// may not have taken effect. Only for a single key.
func latestStart(ops []*operation, illegal func([]*operation) bool) []*operation {
	tried := 0
	for i := len(ops) - 1; i >= 0; i-- {
		first := ops[i]
		if first.Outcome != outcomeOK || first.Commands[0].Verb != "SET" {
			continue
		}
		if rest := startingWith(first, ops); illegal(rest) {
			return rest
		}
		// The farther back, the larger the steps: each try costs as much as a check.
		tried++
		i -= tried / startsTriedInARow
	}
	return ops
}

func startingWith(first *operation, ops []*operation) []*operation {
	var rest []*operation
	for _, op := range ops {
		switch {
		case op == first || op.CallNs > first.ReturnNs:
			rest = append(rest, op)
		case op.Outcome == outcomeOK && (op.ReturnNs < first.CallNs || op.onlyReads()):
		default:
			rest = append(rest, weakened(op))
		}
	}
	return prune(rest)
}

// withoutReads drops reads that the violation does not need: half of them at once if possible, then a
// quarter, and finally one at a time.
func withoutReads(ops []*operation, illegal func([]*operation) bool) []*operation {
	for size := (len(ops) + 1) / 2; size > 0; size /= 2 {
		for end := len(ops); end > 0; end -= size {
			begin := end - size
			if begin < 0 {
				begin = 0
			}
			if fewer := withoutReadsOf(ops, begin, end); len(fewer) < len(ops) && illegal(fewer) {
				ops = fewer
			}
		}
	}
	return ops
}

func withoutReadsOf(ops []*operation, begin, end int) []*operation {
	fewer := append([]*operation{}, ops[:begin]...)
	for _, op := range ops[begin:end] {
		if !op.onlyReads() {
			fewer = append(fewer, op)
		}
	}
	return append(fewer, ops[end:]...)
}
