"""Powers of two, each computed on an executor of Falcon. Needs only inband."""

from inband import Executor

if __name__ == "__main__":
    with Executor() as executor:
        print(list(executor.map(pow, [2] * 8, range(8))))
