// The Go client "gomemcache" against memcached servers: main write|check ADDR. What write leaves behind, check finds.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

const keys = 20

var large = bytes.Repeat([]byte("inband"), 20_000)

func main() {
	client := memcache.New(os.Args[2])
	client.Timeout = 20 * time.Second
	act := map[string]func(*memcache.Client) error{"write": write, "check": check}[os.Args[1]]
	if err := act(client); err != nil {
		fmt.Fprintln(os.Stderr, "gomemcache:", err)
		os.Exit(1)
	}
}

func name(n int) string { return fmt.Sprintf("go%d", n) }

func expect(what string, got, want error) error {
	if !errors.Is(got, want) {
		return fmt.Errorf("%s: %v, not %v", what, got, want)
	}
	return nil
}

func write(c *memcache.Client) error {
	for n := 0; n < keys; n++ {
		item := &memcache.Item{Key: name(n), Value: []byte(fmt.Sprint(n)), Flags: uint32(n)}
		if err := c.Set(item); err != nil {
			return fmt.Errorf("set: %w", err)
		}
	}
	if err := c.Set(&memcache.Item{Key: "go-large", Value: large}); err != nil {
		return fmt.Errorf("set of %d bytes: %w", len(large), err)
	}
	there := &memcache.Item{Key: name(0), Value: []byte("x")}
	absent := &memcache.Item{Key: "go-absent", Value: []byte("x")}
	read, err := c.Get(name(2))
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	read.Value = []byte("swapped")
	number, incrError := c.Increment(name(1), 41)
	_, noNumber := c.Increment("go-absent", 1)
	for _, err := range []error{
		expect("add", c.Add(there), memcache.ErrNotStored),
		expect("add of a new one", c.Add(&memcache.Item{Key: "go-added", Value: []byte("a")}), nil),
		expect("replace", c.Replace(absent), memcache.ErrNotStored),
		expect("append", c.Append(&memcache.Item{Key: "go-added", Value: []byte("b")}), nil),
		expect("prepend", c.Prepend(&memcache.Item{Key: "go-added", Value: []byte("_")}), nil),
		expect("cas", c.CompareAndSwap(read), nil),
		expect("cas again", c.CompareAndSwap(read), memcache.ErrCASConflict),
		expect("incr", incrError, nil),
		expect("incr of nothing", noNumber, memcache.ErrCacheMiss),
		expect("delete", c.Delete(name(3)), nil),
		expect("delete again", c.Delete(name(3)), memcache.ErrCacheMiss),
		expect("touch", c.Touch(name(4), 1000), nil),
		expect("ping", c.Ping(), nil),
	} {
		if err != nil {
			return err
		}
	}
	if number != 42 {
		return fmt.Errorf("incr: %d", number)
	}
	return nil
}

func check(c *memcache.Client) error {
	expected := map[string]string{"go-added": "_ab", "go-large": string(large), name(1): "42", name(2): "swapped"}
	for n := 0; n < keys; n++ {
		if _, isThere := expected[name(n)]; !isThere && n != 3 {
			expected[name(n)] = fmt.Sprint(n)
		}
	}
	all := []string{name(3)}
	for key := range expected {
		all = append(all, key)
	}
	found, err := c.GetMulti(all)
	if err != nil {
		return fmt.Errorf("get of many: %w", err)
	}
	if len(found) != len(expected) {
		return fmt.Errorf("%d items, not %d", len(found), len(expected))
	}
	for key, value := range expected {
		if string(found[key].Value) != value {
			return fmt.Errorf("%s is %.40q, not %.40q", key, found[key].Value, value)
		}
	}
	if found[name(7)].Flags != 7 {
		return fmt.Errorf("flags %d", found[name(7)].Flags)
	}
	return nil
}
