//! The Go package, `bindings/go`, which is linked with the C library.

use super::*;

/// A command of Go in the package; `None`, and a line that says so, on a machine without Go.
fn go(words: &[&str]) -> Option<Command> {
    if Command::new("go").arg("version").output().is_err() {
        inband_testing::not_run("go is not on the PATH");
        return None;
    }
    let libraries = library_dir();
    let libraries = libraries.display();
    let mut go = Command::new("go");
    go.args(words).current_dir(source("../go")).env(
        "CGO_LDFLAGS",
        format!("-L{libraries} -Wl,-rpath,{libraries}"),
    );
    Some(go)
}

#[test]
fn the_go_example_loses_nothing_when_the_leader_is_restarted() {
    const COUNT: usize = 3000;
    let mut cluster = Cluster::start(2, 1);
    let program = cluster.dir.path().join("counter");
    let Some(mut build) = go(&["build", "-o"]) else {
        return;
    };
    run(build.arg(&program).arg("./example/counter"));
    let mut replicas: Vec<Program> = (FIRST_REPLICA..FIRST_REPLICA + 2)
        .map(|node| {
            let mut command = Command::new(&program);
            command.arg(cluster.config(node, 60_000));
            Program::start(command.args([COUNT.to_string(), (2 * COUNT).to_string()]))
        })
        .collect();
    let mut outputs = [replicas[0].lines_until("10"), Vec::new()];
    cluster.leader.stop();
    cluster.leader = Running::default();
    let leader = Config::load(&cluster.config(LEADER, 5000)).expect("it is right");
    cluster.leader.start(leader);
    for (replica, output) in replicas.iter_mut().zip(&mut outputs) {
        output.extend(replica.lines_until("sum"));
    }

    assert!(outputs[0] == outputs[1], "replicas differ");
    let (summary, deliveries) = outputs[0].split_last().expect("there is a summary");
    assert_eq!(summary, &format!("sum {}", COUNT * (COUNT + 1)));
    let values: std::collections::BTreeSet<&str> = deliveries
        .iter()
        .filter_map(|line| line.split_once(' ').map(|(_, value)| value))
        .collect();
    for replica in &replicas {
        for number in 1..=COUNT {
            let value = format!("{} {number}", replica.child.id());
            assert!(values.contains(value.as_str()), "{value} is missing");
        }
    }
    assert_eq!(values.len(), deliveries.len(), "delivered twice");
    cluster.end();
}

#[test]
fn the_go_package_is_tested_and_vetted() {
    let cluster = Cluster::start(1, 1);
    let (Some(mut vet), Some(mut test)) = (go(&["vet", "./..."]), go(&["test", "-count=1", "."]))
    else {
        return;
    };
    run(&mut vet);
    test.env(
        "INBAND_GO_TEST_CONFIG",
        cluster.config(FIRST_REPLICA, 60_000),
    );
    let output = test.output().expect("go runs");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    cluster.end();
}
