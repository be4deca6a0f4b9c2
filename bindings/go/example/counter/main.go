// Counter is a replicated counter, one replica.
//
//	counter CONFIG COUNT TOTAL
//
// It submits the numbers 1 to COUNT, adds up all numbers that are delivered, also those of other replicas, and prints
// each as a line "INSTANCE ORIGIN NUMBER". After TOTAL deliveries it prints "sum ...", and runs until its standard input
// ends, so that slower replicas can catch up.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"

	"inband"
)

// submitters is how many values are in flight.
const submitters = 64

func main() {
	if len(os.Args) != 4 {
		log.Fatal("usage: counter CONFIG COUNT TOTAL")
	}
	count, total := number(os.Args[2]), number(os.Args[3])
	replica, err := inband.Open(os.Args[1], inband.Options{})
	check(err)
	defer replica.Close()
	for first := 1; first <= submitters; first++ {
		go func(n int) {
			for ; n <= count; n += submitters {
				check(replica.Submit(context.Background(), []byte(fmt.Sprintf("%d %d", os.Getpid(), n))))
			}
		}(first)
	}
	sum := 0
	for i := 0; i < total; i++ {
		delivery, err := replica.Deliver(context.Background())
		check(err)
		var origin, n int
		_, err = fmt.Sscan(string(delivery.Value), &origin, &n)
		check(err)
		sum += n
		fmt.Println(delivery.Instance, origin, n)
	}
	fmt.Println("sum", sum)
	io.Copy(io.Discard, os.Stdin)
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	check(err)
	return n
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
