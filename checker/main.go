// Inband-checker reads a history of `inband chaos` and checks with Porcupine whether it is
// linearizable.
//
// It prints one JSON object. Exit status: 0 if the history is linearizable, 1 if it is not, 2 if it
// could not be read, 3 if the check ran out of time.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	endLinearizable = 0
	endViolation    = 1
	endUnreadable   = 2
	endUndecided    = 3
)

// violationsShownMax bounds how many violations are shrunk and drawn; all are counted.
const violationsShownMax = 5

// verdict is the JSON object printed.
type verdict struct {
	Verdict    string         `json:"verdict"` // linearizable, violation or undecided
	Operations map[string]int `json:"operations"`
	Groups     int            `json:"groups"`
	// Size of the largest group of operations that was checked together.
	LargestGroup int         `json:"largest_group"`
	DurationMs   int64       `json:"duration_ms"`
	SlowestMs    int64       `json:"slowest_group_ms"`
	Undecided    []string    `json:"undecided"`
	Violating    []string    `json:"violating"`
	Violations   []violation `json:"violations"`
}

// violation shows one group that is not linearizable.
type violation struct {
	Group string `json:"group"`
	// Porcupine's pictures of the short history and of the whole group.
	Picture      string `json:"picture,omitempty"`
	WholePicture string `json:"whole_picture,omitempty"`
	// A short history that is already a violation, also in words.
	Operations []*operation `json:"operations"`
	Words      []string     `json:"words"`
}

func main() {
	seconds := flag.Float64("seconds", 60, "longest check of one group of keys")
	pictures := flag.String("pictures", "", "draw violations in this directory")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: inband-checker [-seconds S] [-pictures DIR] HISTORY.jsonl")
		os.Exit(endUnreadable)
	}
	limit := time.Duration(*seconds * float64(time.Second))
	found, err := judge(flag.Arg(0), limit, *pictures)
	if err != nil {
		fmt.Fprintf(os.Stderr, "inband-checker: %s: %v\n", flag.Arg(0), err)
		os.Exit(endUnreadable)
	}
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		fmt.Fprintln(os.Stderr, "inband-checker:", err)
		os.Exit(endUnreadable)
	}
	switch found.Verdict {
	case "violation":
		os.Exit(endViolation)
	case "undecided":
		os.Exit(endUndecided)
	}
	os.Exit(endLinearizable)
}

func judge(path string, limit time.Duration, pictures string) (*verdict, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	groups, outcomes, err := readHistory(file)
	if err != nil {
		return nil, err
	}
	if len(groups) == 0 {
		return nil, fmt.Errorf("no operation that constrains anything; was the cluster up?")
	}
	began := time.Now()
	found := checkAll(groups, limit)
	found.Operations = outcomes
	for i, name := range found.Violating {
		if i == violationsShownMax {
			break
		}
		shown, err := show(name, groups[name], limit, pictures)
		if err != nil {
			return nil, err
		}
		found.Violations = append(found.Violations, shown)
	}
	found.DurationMs = time.Since(began).Milliseconds()
	return found, nil
}

// checkAll checks all groups, as many at a time as there are processors.
func checkAll(groups map[string][]*operation, limit time.Duration) *verdict {
	names := make(chan string)
	found := &verdict{
		Verdict: "linearizable", Groups: len(groups),
		Undecided: []string{}, Violating: []string{}, Violations: []violation{},
	}
	var workers sync.WaitGroup
	var lock sync.Mutex
	for i := 0; i < runtime.NumCPU(); i++ {
		workers.Add(1)
		go func() {
			defer workers.Done()
			for name := range names {
				began := time.Now()
				result := check(groups[name], limit)
				lock.Lock()
				found.add(name, len(groups[name]), result, time.Since(began))
				lock.Unlock()
			}
		}()
	}
	for name := range groups {
		names <- name
	}
	close(names)
	workers.Wait()
	sort.Strings(found.Undecided)
	sort.Strings(found.Violating)
	return found
}

func (v *verdict) add(group string, operations int, result porcupine.CheckResult, took time.Duration) {
	if operations > v.LargestGroup {
		v.LargestGroup = operations
	}
	if ms := took.Milliseconds(); ms > v.SlowestMs {
		v.SlowestMs = ms
	}
	switch result {
	case porcupine.Illegal:
		v.Verdict = "violation"
		v.Violating = append(v.Violating, group)
	case porcupine.Unknown:
		if v.Verdict == "linearizable" {
			v.Verdict = "undecided"
		}
		v.Undecided = append(v.Undecided, group)
	}
}

func show(group string, ops []*operation, limit time.Duration, pictures string) (violation, error) {
	short := shrink(ops, limit)
	shown := violation{Group: group, Operations: short}
	for _, op := range short {
		shown.Words = append(shown.Words, describe(op, repliesOf(op)))
	}
	if pictures == "" {
		return shown, nil
	}
	shown.Picture = fmt.Sprintf("violation-%s.html", group)
	shown.WholePicture = fmt.Sprintf("violation-%s-whole.html", group)
	if err := draw(short, limit, filepath.Join(pictures, shown.Picture)); err != nil {
		return shown, err
	}
	return shown, draw(ops, limit, filepath.Join(pictures, shown.WholePicture))
}
