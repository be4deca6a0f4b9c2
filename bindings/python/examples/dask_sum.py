"""A Dask graph whose tasks run on Falcon: pip install dask."""

import dask

from inband import Executor


@dask.delayed
def square(number):
    return number * number


if __name__ == "__main__":
    total = dask.delayed(sum)([square(number) for number in range(100)])
    with Executor() as executor:
        print(total.compute(scheduler=executor))
