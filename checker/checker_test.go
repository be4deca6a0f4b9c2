package main

import (
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

const limit = 20 * time.Second

// parse reads a history in short form, one operation per line: begin, end, and commands with their
// replies; "?" for an unknown end, "!" after the end for a failure.
//
//	0 5 SET a 1 = OK, INCR b = 1
//	2 ? SET a 3
func parse(t *testing.T, text string) map[string][]*operation {
	t.Helper()
	var lines []string
	for id, line := range strings.Split(strings.TrimSpace(text), "\n") {
		fields := strings.SplitN(strings.TrimSpace(line), " ", 3)
		outcome, end := outcomeOK, fields[1]
		if end == "?" {
			outcome, end = outcomeUnknown, "0"
		} else if strings.HasSuffix(end, "!") {
			outcome, end = outcomeFailed, strings.TrimSuffix(end, "!")
		}
		var commands, replies []string
		for _, part := range strings.Split(fields[2], ", ") {
			said, answered, _ := strings.Cut(part, " = ")
			words := strings.Fields(said)
			value := ""
			if len(words) == 3 {
				value = `,"value":` + quoted(words[2])
			}
			commands = append(commands, fmt.Sprintf(`{"verb":%q,"key":%q%s}`, words[0], words[1], value))
			replies = append(replies, quoted(answered))
		}
		lines = append(lines, fmt.Sprintf(
			`{"kind":"operation","id":%d,"process":%d,"group":"g","call_ns":%s,"return_ns":%s,"outcome":%q,"commands":[%s],"replies":[%s]}`,
			id, id, fields[0], end, outcome, strings.Join(commands, ","), strings.Join(replies, ",")))
	}
	groups, _, err := readHistory(strings.NewReader(strings.Join(lines, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	return groups
}

func quoted(text string) string {
	if text == "" || text == "nil" {
		return "null"
	}
	return strconv.Quote(text)
}

// Histories written by hand: name, whether it is linearizable, and what happened.
var histories = []struct {
	name string
	good bool
	text string
}{
	{"one after the other", true, `
		0 1 SET a 1 = OK
		2 3 GET a = 1
		4 5 INCR a = 2
		6 7 DEL a = 1
		8 9 GET a = nil
		10 11 INCR a = 1`},
	{"a stale read", false, `
		0 1 SET a 1 = OK
		2 3 SET a 2 = OK
		4 5 GET a = 1`},
	{"a read beside a write may see either", true, `
		0 1 SET a 1 = OK
		2 9 SET a 2 = OK
		3 4 GET a = 1
		5 6 GET a = 2`},
	{"but not the old after the new", false, `
		0 1 SET a 1 = OK
		2 9 SET a 2 = OK
		3 4 GET a = 2
		5 6 GET a = 1`},
	{"an acknowledged write is lost", false, `
		0 1 SET a 1 = OK
		2 3 GET a = nil`},
	{"an unknown write shows up late", true, `
		0 1 SET a 1 = OK
		2 ? SET a 2
		5 6 GET a = 1
		7 8 GET a = 2`},
	{"and goes away again", false, `
		0 1 SET a 1 = OK
		2 ? SET a 2
		5 6 GET a = 2
		7 8 GET a = 1`},
	{"an unknown write before its call", false, `
		0 1 SET a 1 = OK
		2 3 GET a = 2
		4 ? SET a 2`},
	{"a failed write has no effect", false, `
		0 1 SET a 1 = OK
		2 3! SET a 2
		4 5 GET a = 2`},
	{"an unknown increment is done once", false, `
		0 1 SET a 10 = OK
		2 ? INCR a
		3 4 INCR a = 13`},
	{"two increments, one number", false, `
		0 5 INCR a = 1
		1 6 INCR a = 1`},
	{"memcached's add, append and incr", true, `
		0 1 INCR-EXISTING a = nil
		2 3 APPEND a ,9 = 0
		4 5 ADD a 1 = 1
		6 7 ADD a 5 = 0
		8 9 INCR-EXISTING a = 2
		10 11 APPEND a ,9 = 1
		12 13 GET a = 2,9
		14 15 CHECK a 2,9, SET a 7 = OK`},
	{"two clients add the same", false, `
		0 5 ADD a 1 = 1
		1 6 ADD a 2 = 1`},
	{"something is appended twice", false, `
		0 1 SET a 1 = OK
		2 ? APPEND a ,2
		3 4 GET a = 1,2,2`},
	{"an increment makes a value of nothing", false, `
		0 ? INCR-EXISTING a
		1 2 GET a = 1`},
	{"an append of unknown outcome is seen through a later one", true, `
		0 ? SET a 1
		1 ? APPEND a ,2
		2 3 APPEND a ,3 = 1
		4 5 GET a = 1,2,3`},
	{"a delete of unknown outcome is seen through an add of unknown outcome", true, `
		0 1 SET a 7 = OK
		2 ? DEL a
		2 ? ADD a 1
		2 ? INCR-EXISTING a
		4 5 GET a = 2`},
	{"an add of unknown outcome to a value that nothing deleted", false, `
		0 1 SET a 7 = OK
		2 ? ADD a 1
		4 5 GET a = 1`},
	{"an add of unknown outcome is seen by another one", true, `
		0 ? ADD a 1
		1 2 ADD a 2 = 0`},
	{"a transaction seen by half", false, `
		0 1 SET a 1 = OK, SET b 1 = OK
		2 9 SET a 2 = OK, SET b 2 = OK
		3 4 GET a = 2, GET b = 1`},
	{"two keys in two orders", false, `
		0 9 SET a 1 = OK
		0 9 SET b 1 = OK
		1 2 GET a = 1, GET b = nil
		1 2 GET a = nil, GET b = 1`},
	{"each key alone is fine, both together are not", false, `
		0 9 SET a 1 = OK, SET b 1 = OK
		1 2 GET a = 1
		3 4 GET b = nil
		5 6 GET a = 1`},
	{"a checked write", true, `
		0 1 SET a 1 = OK
		2 5 CHECK a 1, SET a 2 = OK
		3 4 GET a = 1`},
	{"a checked write over another value", false, `
		0 1 SET a 1 = OK
		2 3 SET a 3 = OK
		4 5 CHECK a 1, SET a 2 = OK`},
	{"a checked write of unknown outcome over another value does nothing", true, `
		0 1 SET a 1 = OK
		2 3 SET a 3 = OK
		4 ? CHECK a 1, SET a 2
		5 6 GET a = 3`},
	{"a value nobody wrote", false, `
		0 1 SET a 1 = OK
		2 3 GET a = what`},
	{"an unknown write is only seen by a DEL", true, `
		0 ? SET a 1
		2 3 DEL a = 1`},
	{"an unknown write is only seen by an increment", true, `
		0 ? SET a 5
		2 3 INCR a = 6
		4 5 INCR a = 7`},
	{"an unknown DEL is only seen by an increment", true, `
		0 1 SET a 5 = OK
		2 ? DEL a
		4 5 INCR a = 1
		6 7 INCR a = 2`},
	{"an unknown transaction is seen in one of its keys", false, `
		0 1 SET a 1 = OK, SET b 1 = OK
		2 ? SET a 2, SET b 2
		3 4 GET a = 2
		5 6 GET b = 1`},
	{"an unknown write that a check relies on", true, `
		0 ? SET a 5
		2 3 CHECK a 5, SET a 6 = OK
		4 5 GET a = 6`},
	{"REMOVE does not say whether there was something", true, `
		0 1 REMOVE a = OK
		2 3 SET a 1 = OK
		4 5 REMOVE a = OK
		6 7 GET a = nil`},
	{"but it removes", false, `
		0 1 SET a 1 = OK
		2 3 REMOVE a = OK
		4 5 GET a = 1`},
	{"DEL says whether there was something", false, `
		0 1 DEL a = 1
		2 3 SET a 1 = OK`},
}

func TestHistoriesWrittenByHand(t *testing.T) {
	for _, h := range histories {
		want := porcupine.Ok
		if !h.good {
			want = porcupine.Illegal
		}
		if got := check(parse(t, h.text)["g"], limit); got != want {
			t.Errorf("%s: %s", h.name, got)
		}
	}
}

func TestViolationsAreShrunkToViolations(t *testing.T) {
	for _, h := range histories {
		if h.good {
			continue
		}
		ops := parse(t, h.text)["g"]
		short := shrink(ops, limit)
		if check(short, limit) != porcupine.Illegal || len(short) > len(ops) {
			t.Errorf("%s: shrunk to %v", h.name, words(short))
		}
	}
}

func words(ops []*operation) []string {
	var all []string
	for _, op := range ops {
		all = append(all, describe(op, repliesOf(op)))
	}
	return all
}

// store simulates a real register: each command is executed at a moment within its operation. Its
// history is linearizable for every seed; with a lie it is not.
func store(seed int64, operations int, lieAt int) string {
	dice := rand.New(rand.NewSource(seed))
	var text strings.Builder
	previous, value := "nil", "nil"
	for i := 0; i < operations; i++ {
		executed := int64(i) * 10
		begin, end := executed-dice.Int63n(50), executed+1+dice.Int63n(50)
		switch {
		case i == lieAt:
			fmt.Fprintf(&text, "%d %d GET a = %s\n", executed, executed, previous)
		case dice.Intn(2) == 0:
			fmt.Fprintf(&text, "%d %d GET a = %s\n", begin, end, value)
		case i > 10 && dice.Intn(10) == 0:
			previous, value = value, strconv.Itoa(i)
			fmt.Fprintf(&text, "%d ? SET a %s\n", begin, value)
		default:
			previous, value = value, strconv.Itoa(i)
			fmt.Fprintf(&text, "%d %d SET a %s = OK\n", begin, end, value)
		}
	}
	return text.String()
}

func TestALongHistoryIsJudgedAndItsLieIsFound(t *testing.T) {
	// Writes that nothing saw are not tried in every order.
	for seed := int64(0); seed < 5; seed++ {
		good := parse(t, store(seed, 2000, -1))["g"]
		if got := check(good, limit); got != porcupine.Ok {
			t.Errorf("seed %d: %s", seed, got)
		}
	}
	// A value that was overwritten long ago.
	text := store(1, 1000, -1) + "20000 20001 SET a 5000 = OK\n20002 20003 GET a = 5000\n20004 20005 GET a = 7\n"
	bad := parse(t, text)["g"]
	if got := check(bad, limit); got != porcupine.Illegal {
		t.Fatalf("the lie: %s", got)
	}
	if short := shrink(bad, limit); len(short) > 3 {
		t.Errorf("a lie told by two operations is shown in %d", len(short))
	}
}

// everything simulates a register with all of memcached's commands. Of an operation with unknown outcome the command may
// be executed at any later time, or never. Its history is linearizable for every seed.
func everything(dice *rand.Rand, operations int) []*operation {
	index := map[string]int{"a": 0}
	var ops, executed []*operation
	moment := map[*operation]int64{}
	text := func(text string) *string { return &text }
	for i := 0; i < operations; i++ {
		op := &operation{ID: i, Outcome: outcomeOK, CallNs: int64(i) * 10}
		one := func(verb string, value *string) {
			op.Commands = append(op.Commands, command{Verb: verb, Key: "a", Value: value})
		}
		value := strconv.Itoa(1000 * (i + 1))
		switch verb := []string{"GET", "SET", "ADD", "APPEND", "INCR", "INCR-EXISTING", "DEL"}[dice.Intn(7)]; verb {
		case "SET", "ADD":
			one(verb, text(value))
		case "APPEND":
			one(verb, text(","+value))
		default:
			one(verb, nil)
		}
		moment[op] = op.CallNs + dice.Int63n(40)
		op.ReturnNs = moment[op] + 1 + dice.Int63n(40)
		if dice.Intn(3) == 0 {
			op.Outcome = outcomeUnknown
			moment[op] += dice.Int63n(100)
		}
		ops = append(ops, op)
		if op.Outcome == outcomeOK || dice.Intn(2) == 0 {
			executed = append(executed, op)
		}
	}
	sort.Slice(executed, func(i, j int) bool { return moment[executed[i]] < moment[executed[j]] })
	state := values{}
	for _, op := range executed {
		possible := []*string{nil, text("0"), text("1"), text("OK"), text(notANumber), text(state[0])}
		if number, err := strconv.Atoi(orNumber(state[0])); err == nil {
			possible = append(possible, text(strconv.Itoa(number+1)))
		}
		taken := false
		for _, reply := range possible {
			if ok, after := step(index, state, op, []*string{reply}); ok {
				state, op.Replies, taken = after, []*string{reply}, true
				break
			}
		}
		if !taken { // the model has no answer to INCR of a text
			op.Outcome = outcomeFailed
		}
	}
	var known []*operation
	for _, op := range ops {
		switch op.Outcome {
		case outcomeUnknown:
			op.Replies = nil
			known = append(known, op)
		case outcomeOK:
			known = append(known, op)
		}
	}
	return known
}

func orNumber(value string) string {
	if value == "" {
		return "0"
	}
	return value
}

func TestNoHistoryOfARealStoreIsAViolation(t *testing.T) {
	for seed := int64(0); seed < 20000; seed++ {
		ops := everything(rand.New(rand.NewSource(seed)), 14)
		if got := check(prune(ops), limit); got != porcupine.Ok {
			t.Fatalf("seed %d: %s: %s", seed, got, strings.Join(words(ops), "; "))
		}
	}
}

func TestAHistoryWithoutTimeToCheckItIsUndecided(t *testing.T) {
	groups := parse(t, store(3, 3000, -1))
	if found := checkAll(groups, time.Nanosecond); found.Verdict != "undecided" || len(found.Undecided) != 1 {
		t.Errorf("%+v", found)
	}
}

func TestAVerdictNamesAndDrawsItsViolations(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "history.jsonl")
	line := `{"kind":"operation","id":%d,"process":0,"group":"%s","call_ns":%d,"return_ns":%d,"outcome":"ok","commands":[{"verb":"%s","key":"a"%s}],"replies":[%s]}`
	text := `{"kind":"about","seed":7}` + "\n"
	for _, group := range []string{"good", "bad"} {
		text += fmt.Sprintf(line, 1, group, 0, 1, "SET", `,"value":"5"`, `"OK"`) + "\n"
		reply := map[string]string{"good": `"5"`, "bad": "null"}[group]
		text += fmt.Sprintf(line, 2, group, 2, 3, "GET", "", reply) + "\n"
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	found, err := judge(path, limit, dir)
	if err != nil {
		t.Fatal(err)
	}
	if found.Verdict != "violation" || len(found.Violating) != 1 || found.Violating[0] != "bad" || found.Groups != 2 {
		t.Errorf("%+v", found)
	}
	if found.Operations[outcomeOK] != 4 {
		t.Errorf("%v", found.Operations)
	}
	for _, picture := range []string{found.Violations[0].Picture, found.Violations[0].WholePicture} {
		if info, err := os.Stat(filepath.Join(dir, picture)); err != nil || info.Size() < 1000 {
			t.Errorf("%s: %v", picture, err)
		}
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	for _, text := range []string{
		`{`,
		`{"kind":"operation","commands":[],"outcome":"ok"}`,
		`{"kind":"operation","commands":[{"verb":"PUSH","key":"a"}],"outcome":"ok","replies":["1"]}`,
		`{"kind":"operation","commands":[{"verb":"SET","key":"a"}],"outcome":"ok","replies":["OK"]}`,
		`{"kind":"operation","commands":[{"verb":"GET","key":"a"}],"outcome":"ok","replies":[]}`,
		`{"kind":"operation","commands":[{"verb":"GET","key":"a"}],"outcome":"perhaps"}`,
		`{"kind":"operation","call_ns":2,"return_ns":1,"commands":[{"verb":"GET","key":"a"}],"outcome":"ok","replies":[null]}`,
	} {
		if _, _, err := readHistory(strings.NewReader(text)); err == nil {
			t.Errorf("taken: %s", text)
		}
	}
}
