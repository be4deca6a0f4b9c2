use super::*;
use crate::work::{Command, CommandOutput};
use std::time::Instant;

const LIMIT: Duration = Duration::from_secs(20);

struct Rig {
    runner: Runner,
    outcomes: Receiver<Outcome>,
}

fn rig(tools: Tools) -> Rig {
    let (sender, outcomes) = channel();
    let done = move |outcome| sender.send(outcome).expect("the test waits");
    let runner = Runner::new(Arc::new(tools), "runner".into(), done).expect("a thread");
    Rig { runner, outcomes }
}

impl Rig {
    fn run(&self, call: &Call) -> Result<Vec<u8>, Vec<u8>> {
        self.runner.start(call.encode());
        self.outcome()
    }

    fn outcome(&self) -> Result<Vec<u8>, Vec<u8>> {
        match self.outcomes.recv_timeout(LIMIT).expect("it ends") {
            Outcome::Output(Payload::Inline(output)) => Ok(output),
            Outcome::Error(Payload::Inline(error)) => Err(error),
            other => panic!("{other:?}"),
        }
    }

    fn command(&self, argv: &[&str], stdin: &[u8]) -> CommandOutput {
        let output = self.run(&command(argv, stdin)).expect("it runs");
        CommandOutput::decode(&output).expect("an output")
    }

    fn error(&self, call: &Call) -> String {
        String::from_utf8(self.run(call).expect_err("it fails")).expect("text")
    }
}

fn command(argv: &[&str], stdin: &[u8]) -> Call {
    Call::Command(Command {
        argv: argv.iter().map(|word| (*word).to_owned()).collect(),
        env: vec![("COLOUR".into(), "green".into())],
        dir: Some("/".into()),
        stdin: stdin.to_vec(),
    })
}

#[test]
fn work_that_cannot_be_fetched_is_asked_for_again_until_the_task_is_stopped() {
    let rig = rig(Tools::default());
    let mut failures = 3;
    let call = Call::Sleep { micros: 0 }.encode();
    rig.runner.start_fetched(move || match failures {
        0 => Ok(call.clone()),
        _ => {
            failures -= 1;
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    });
    assert_eq!(rig.outcome(), Ok(Vec::new()));
    rig.runner
        .start_fetched(|| Err(io::ErrorKind::ConnectionRefused.into()));
    rig.runner.stop();
    let error = String::from_utf8(rig.outcome().expect_err("it was stopped")).expect("text");
    assert!(error.contains("cannot fetch the work"), "{error}");
}

#[test]
fn programs_are_fed_and_heard() {
    let rig = rig(Tools::default());
    let output = rig.command(&["sh", "-c", "cat; pwd; echo $COLOUR >&2; exit 3"], b"in ");
    assert_eq!(output.stdout, b"in /\n");
    assert_eq!(output.stderr, b"green\n");
    assert_eq!((output.status, output.is_cut), (3, false));
    let killed = rig.command(&["sh", "-c", "kill -9 $$"], b"");
    assert_eq!(killed.status, 128 + 9);
    let unread = rig.command(&["true"], &vec![0; 1 << 20]);
    assert_eq!(unread.status, 0);
}

#[test]
fn a_program_that_writes_for_ever_is_heard_up_to_a_limit() {
    let rig = rig(Tools::default());
    let output = rig.command(&["head", "-c", "20000000", "/dev/zero"], b"");
    assert_eq!(output.stdout.len(), crate::limits::OUTPUT_LEN_BYTES_MAX);
    assert!(output.is_cut);
}

#[test]
fn what_cannot_run_says_so() {
    let mut tools = Tools::default();
    let double: Function = Box::new(|n| Ok(n.iter().map(|n| n * 2).collect()));
    tools.functions.insert("double".into(), double);
    tools
        .functions
        .insert("panic".into(), Box::new(|_| panic!("oops")));
    let rig = rig(tools);
    let error = rig.error(&command(&["no-such-program"], b""));
    assert!(error.starts_with("cannot run no-such-program: "), "{error}");
    let error = rig.error(&Call::Command(Command::default()));
    assert!(error.starts_with("a command without a program"), "{error}");
    let function = |name: &str| Call::Function {
        name: name.into(),
        argument: vec![1, 2],
    };
    assert_eq!(rig.run(&function("double")), Ok(vec![2, 4]));
    assert_eq!(rig.error(&function("panic")), "it panicked: oops");
    let error = rig.error(&function("half"));
    assert_eq!(
        error,
        r#"this worker has no function "half"; it has ["double", "panic"]"#
    );
    rig.runner.start(vec![250, 1]);
    let error = String::from_utf8(rig.outcome().expect_err("nonsense")).unwrap();
    assert!(
        error.starts_with("the work of the task cannot be decoded"),
        "{error}"
    );
    let no_python = rig.error(&Call::Python(vec![]));
    assert!(no_python.contains("runs no Python"), "{no_python}");
}

#[test]
fn what_runs_can_be_stopped() {
    let rig = rig(Tools::default());
    let begun = Instant::now();
    rig.runner
        .start(command(&["sh", "-c", "sleep 60 & sleep 60"], b"").encode());
    std::thread::sleep(Duration::from_millis(50));
    rig.runner.stop();
    let output = rig.outcome().expect("an output");
    assert_eq!(CommandOutput::decode(&output).unwrap().status, 128 + 9);
    rig.runner
        .start(Call::Sleep { micros: 60_000_000 }.encode());
    rig.runner.stop();
    assert_eq!(rig.outcome(), Ok(vec![]));
    // Stopped before it began; the next one is not affected.
    assert_eq!(rig.command(&["echo"], b"").stdout, b"\n");
    rig.runner
        .start(Call::Sleep { micros: 60_000_000 }.encode());
    drop(rig);
    assert!(begun.elapsed() < LIMIT);
}

/// A fake interpreter: answers a call with the call itself, twice; ends at the second "end".
const FAKE_PYTHON: &str = r#"#!/usr/bin/env python3
import struct, sys
calls, answers = sys.stdin.buffer, sys.stdout.buffer
while head := calls.read(4):
    call = calls.read(struct.unpack("<I", head)[0])
    if call == b"end":
        sys.exit(7)
    if call == b"hang":
        import time
        time.sleep(60)
    answer = (b"\1" if call == b"raise" else b"\0") + call * 2
    answers.write(struct.pack("<I", len(answer)) + answer)
    answers.flush()
"#;

#[test]
fn an_interpreter_is_kept_and_started_again_when_it_ends() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let python = dir.path().join("python");
    std::fs::write(&python, FAKE_PYTHON).expect("it is written");
    std::fs::set_permissions(&python, PermissionsExt::from_mode(0o755)).expect("it can be run");
    let rig = rig(Tools {
        python: Some(Interpreter {
            program: python,
            env: Vec::new(),
        }),
        ..Tools::default()
    });
    let call = |text: &str| Call::Python(text.as_bytes().to_vec());
    assert_eq!(rig.run(&call("ab")), Ok(b"abab".to_vec()));
    assert_eq!(rig.run(&call("raise")), Err(b"\x01raiseraise".to_vec()));
    let ended = rig.error(&call("end"));
    assert!(
        ended.starts_with("\u{2}the Python interpreter that ran this task ended (status 7); "),
        "{ended}"
    );
    assert_eq!(rig.run(&call("ab")), Ok(b"abab".to_vec()), "another one");
    rig.runner.start(call("hang").encode());
    std::thread::sleep(Duration::from_millis(50));
    rig.runner.stop();
    let ended = String::from_utf8(rig.outcome().expect_err("it was killed")).unwrap();
    assert!(ended.contains("killed by SIGKILL"), "{ended}");
    assert_eq!(rig.run(&call("cd")), Ok(b"cdcd".to_vec()));
}
