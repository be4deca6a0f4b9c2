//! Ordinary programs whose result does not depend on where their heap is.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::output;

/// Returns whether a program is installed, and says so if it is not.
fn is_here(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    if !found {
        inband_testing::not_run(format!("{program} is not on the PATH"));
    }
    found
}

/// A program that reads its input and prints its result.
pub struct Workload {
    words: Vec<String>,
    input: Option<PathBuf>,
    _dir: TempDir,
}

impl Workload {
    /// Returns the program and its arguments.
    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Returns the output of the program, run by this command or by itself.
    pub fn result(&self, runner: Option<Command>) -> String {
        let command = match runner {
            Some(mut command) => {
                command.args(&self.words);
                command
            }
            None => {
                let mut command = Command::new(&self.words[0]);
                command.args(&self.words[1..]);
                command
            }
        };
        let mut command = command;
        command.env("LC_ALL", "C");
        let open = |path: &PathBuf| File::open(path).expect("it was written").into();
        let input = self.input.as_ref().map_or(Stdio::null(), open);
        output(command, input)
    }
}

/// SQLite's shell with a database in memory; `None` if it is not installed.
pub fn sqlite(rows: u64) -> Option<Workload> {
    if !is_here("sqlite3") {
        return None;
    }
    let script = format!("{TABLE}{}{INDEX}{CHANGES}", insert(1, rows));
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("script.sql");
    std::fs::write(&input, script).unwrap();
    Some(Workload {
        words: SQLITE.map(str::to_owned).into(),
        input: Some(input),
        _dir: dir,
    })
}

const SQLITE: [&str; 2] = ["sqlite3", ":memory:"];
// Dot commands must begin in the first column.
const TABLE: &str = ".bail on
CREATE TABLE people(id INTEGER PRIMARY KEY, name TEXT, city TEXT, score INTEGER);
";
const INDEX: &str = "CREATE INDEX by_city ON people(city, score);
";
const CHANGES: &str = "UPDATE people SET score = score + 1 WHERE id % 3 = 0;
DELETE FROM people WHERE id % 11 = 0;
SELECT city, count(*), sum(score), min(name), max(name) FROM people GROUP BY city ORDER BY city;
PRAGMA integrity_check;
";

/// The statement that inserts these rows.
fn insert(first: u64, last: u64) -> String {
    format!(
        "WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last})
INSERT INTO people SELECT i, 'name-' || (i * 7919 % 120011), 'city-' || (i % 97), i * 31 % 1009 FROM n;
"
    )
}

/// SQLite's shell, which gets rows for as long as a test wants it to be busy.
pub struct Sqlite {
    shell: Child,
    batches: u64,
}

/// Enough for a table that does not fit into a buffer of 1 MiB.
const ROWS_OF_FIRST_BATCH: u64 = 15_000;
const ROWS_OF_BATCH: u64 = 500;
/// Length of a batch as text, padded: the shell reads ahead what its buffer and the pipe hold, which is two batches.
const BATCH_BYTES: usize = 64 << 10;

impl Sqlite {
    /// Starts the shell by this command, or by itself; `None` if it is not installed.
    pub fn start(runner: Option<Command>) -> Option<Sqlite> {
        if !is_here(SQLITE[0]) {
            return None;
        }
        let mut command = match runner {
            Some(mut command) => {
                command.arg(SQLITE[0]);
                command
            }
            None => Command::new(SQLITE[0]),
        };
        command.args(&SQLITE[1..]).env("LC_ALL", "C");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut sqlite = Sqlite {
            shell: command.spawn().expect("it starts"),
            batches: 0,
        };
        sqlite.write(&[TABLE, INDEX].concat());
        sqlite.insert();
        Some(sqlite)
    }

    fn write(&mut self, text: &str) {
        let input = self.shell.stdin.as_mut().expect("it is piped");
        input.write_all(text.as_bytes()).expect("the shell runs");
    }

    /// Inserts a batch of rows. Each changes any page of the index.
    pub fn insert(&mut self) {
        let first = match self.batches {
            0 => 1,
            n => ROWS_OF_FIRST_BATCH + (n - 1) * ROWS_OF_BATCH + 1,
        };
        let last = ROWS_OF_FIRST_BATCH + self.batches * ROWS_OF_BATCH;
        self.batches += 1;
        let statement = insert(first, last);
        let padding = "-".repeat(BATCH_BYTES - statement.len());
        self.write(&format!("{statement}{padding}\n"));
    }

    /// The number of batches inserted so far.
    pub fn batches(&self) -> u64 {
        self.batches
    }

    /// Changes the rows and returns what is in the table, after the shell has ended.
    pub fn result(mut self) -> String {
        self.write(CHANGES);
        let output = self.shell.wait_with_output().expect("it is a child");
        assert!(output.status.success(), "{}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Sorts this many lines in memory.
pub fn sort(lines: u64) -> Option<Workload> {
    if !is_here("sort") {
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lines");
    let mut file = std::io::BufWriter::new(File::create(&path).unwrap());
    for n in 1..=lines {
        writeln!(file, "{}", n * 7919 % 1_500_007).unwrap();
    }
    file.into_inner().unwrap();
    let path = path.to_str().unwrap();
    Some(Workload {
        words: ["sort", "-S", "40M", "--parallel=2", path]
            .map(str::to_owned)
            .into(),
        input: None,
        _dir: dir,
    })
}

/// Lets Python build a dictionary of this size, this many times.
pub fn python(keys: u64, rounds: u64) -> Option<Workload> {
    // Not a shim that executes another program: only the started program's heap is in the memory.
    let python = "/usr/bin/python3";
    if !Path::new(python).is_file() {
        inband_testing::not_run(format!("there is no {python}"));
        return None;
    }
    let script = format!(
        "
for _ in range({rounds}):
    d = {{i: str(i * 7) for i in range({keys})}}
    for i in range(0, {keys}, 3):
        del d[i]
print(len(d), sum(len(v) for v in d.values()), d[1])
"
    );
    Some(Workload {
        words: [python, "-c", &script].map(str::to_owned).into(),
        input: None,
        _dir: tempfile::tempdir().unwrap(),
    })
}

/// A Redis server at a socket in its own directory.
pub struct Redis {
    server: Child,
    dir: TempDir,
}

impl Redis {
    /// Starts the server by this command, or by itself; `None` if it is not installed.
    pub fn start(runner: Option<Command>) -> Option<Redis> {
        if !["redis-server", "redis-cli", "redis-benchmark"]
            .into_iter()
            .all(is_here)
        {
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut command = match runner {
            Some(mut command) => {
                command.arg("redis-server");
                command
            }
            None => Command::new("redis-server"),
        };
        command.args(["--port", "0", "--save", "", "--enable-debug-command", "yes"]);
        command.arg("--unixsocket").arg(dir.path().join("socket"));
        let log = File::create(dir.path().join("log")).unwrap();
        let server = command.stdout(log.try_clone().unwrap()).stderr(log).spawn();
        let redis = Redis {
            server: server.expect("it starts"),
            dir,
        };
        let since = Instant::now();
        while !redis.socket().exists() {
            assert!(since.elapsed() < Duration::from_secs(20), "{}", redis.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(redis)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn call(&self, program: &str, arguments: &[&str], input: Stdio) -> String {
        let mut command = Command::new(program);
        command.arg("-s").arg(self.socket()).args(arguments);
        output(command, input)
    }

    /// Fills the server and returns a digest of its content.
    pub fn fill(&self, keys: u64) -> String {
        let mut commands = String::new();
        for n in 0..keys {
            commands += &format!(
                "SET key:{n} {:0300}\r\nRPUSH list:{} {n}\r\n",
                n * 7,
                n % 100
            );
            commands += &format!("ZADD sorted {} {n}\r\n", n * 7919 % 40_009);
        }
        let path = self.dir.path().join("commands");
        std::fs::write(&path, commands).unwrap();
        let input = File::open(path).unwrap();
        let piped = self.call("redis-cli", &["--pipe"], input.into());
        assert!(piped.contains("errors: 0"), "{piped}");
        let digest = self.call("redis-cli", &["DEBUG", "DIGEST"], Stdio::null());
        assert_eq!(digest.trim().len(), 40, "{digest}");
        digest
    }

    /// Loads the server with this many requests of each kind.
    pub fn benchmark(&self, requests: u64) {
        let requests = requests.to_string();
        let load = [
            "-t",
            "set,get,lpush,sadd,zadd",
            "-n",
            &requests,
            "-r",
            "20000",
            "-d",
            "500",
            "-q",
        ];
        self.call("redis-benchmark", &load, Stdio::null());
    }

    /// Stops the server, which must exit without an error.
    pub fn end(mut self) {
        self.call("redis-cli", &["SHUTDOWN", "NOSAVE"], Stdio::null());
        let status = self.server.wait().unwrap();
        assert!(status.success(), "{}", self.log());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
