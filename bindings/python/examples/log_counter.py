"""A replicated counter, one replica.

    python log_counter.py CONFIG COUNT TOTAL

Submits the numbers 1 to COUNT, adds up all numbers that are delivered, also those of other replicas, and prints each as
a line "INSTANCE ORIGIN NUMBER". After TOTAL deliveries it prints "sum ...", and runs until its standard input ends, so
that slower replicas can catch up.
"""

import os
import sys

from inband.log import Log

config, count, total = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with Log(config) as log:
    submitted = [log.submit(f"{os.getpid()} {number}".encode()) for number in range(1, count + 1)]
    sum_of_numbers = 0
    for _ in range(total):
        delivery = log.deliver()
        origin, number = delivery.value.decode().split()
        sum_of_numbers += int(number)
        print(delivery.instance, origin, number, flush=True)
    for future in submitted:
        future.result()  # raises if a value was not applied
    print("sum", sum_of_numbers, flush=True)
    sys.stdin.read()
