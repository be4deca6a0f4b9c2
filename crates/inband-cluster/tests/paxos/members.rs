//! Members that join and leave.

use std::path::PathBuf;

use inband_cluster::paxos::MemberKind;
use inband_paxos::config::Role;

use super::*;

fn names(status: &ClusterStatus) -> Vec<(u8, String)> {
    let hosts = status.hosts.iter();
    hosts.map(|host| (host.id, host.name.clone())).collect()
}

/// Makes the stand-ins' control plane behave differently from now on.
fn mark(spec: &ClusterSpec, marker: &str) -> PathBuf {
    let path = spec.data.join(marker);
    fs::write(&path, "").expect("marker");
    path
}

#[test]
fn members_come_and_go_and_the_next_start_has_those_of_now() {
    for network in networks() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut spec = spec(dir.path(), network);
        let supervisor = Supervisor::start(spec.clone()).expect("up");
        put(supervisor.resp()).expect("put");
        until(&supervisor, "all apply it", |s| applied(s) == [Some(1); 3]);

        assert_eq!(
            supervisor.add_member(MemberKind::Acceptor).expect("add"),
            "acceptor/3"
        );
        let gone = supervisor.status().hosts[2].clone();
        assert_eq!(gone.name, "acceptor/1");
        supervisor.remove_member("acceptor/1").expect("remove");
        let process = format!("/proc/{}", gone.pid.expect("it ran"));
        assert!(!Path::new(&process).exists());
        supervisor.restart("acceptor/1").expect_err("it is gone");
        // Two of its three controllers are left.
        assert_eq!(
            supervisor.add_member(MemberKind::Acceptor).expect("add"),
            "acceptor/4"
        );
        supervisor.kill("replica/1").expect("kill");
        assert_eq!(
            supervisor.replace_member("replica/1").expect("replace"),
            "replica/3"
        );
        let status = supervisor.status();
        let members = [
            (1, "leader/0"),
            (2, "acceptor/0"),
            (4, "acceptor/2"),
            (5, "replica/0"),
            (7, "replica/2"),
            (8, "acceptor/3"),
            (9, "acceptor/4"),
            (10, "replica/3"),
        ]
        .map(|(id, name)| (id, name.to_owned()));
        assert_eq!(names(&status), members);
        assert_eq!(status.epoch, 5);
        assert_eq!(status.hosts[5].roles, [Role::Acceptor, Role::Controller]);
        assert_eq!(status.hosts[6].roles, [Role::Acceptor, Role::Controller]);
        let own_listener = status.hosts[7].resp.expect("a port of its own");
        assert_eq!(own_listener.port(), spec.resp.port() + 4);
        assert_eq!(put(own_listener).expect("it serves"), "replica/3");
        assert_eq!(
            supervisor.move_leader(None, "replica/2").expect("move"),
            "replica/2"
        );
        until(&supervisor, "it leads", |s| {
            s.leader(0) == Some("replica/2")
        });
        let error = supervisor.remove_member("acceptor/9").expect_err("unknown");
        assert!(
            error.to_string().contains("acceptor/3, acceptor/4"),
            "{error}"
        );

        let mut at = None;
        until(&supervisor, "all apply it", |s| {
            let applied = applied(s);
            at = applied[0];
            at.is_some() && applied.iter().all(|a| *a == at)
        });
        let at = at.expect("a replica");
        assert_eq!(supervisor.down().expect("down").clean_at, Some(vec![at]));
        drop(supervisor);

        // Acceptors that have lost their votes begin after what replicas have applied.
        mark(&spec, "lost");
        let supervisor = Supervisor::start(spec.clone()).expect("up again");
        let status = supervisor.status();
        assert_eq!(names(&status), members);
        assert_eq!(status.epoch, 6);
        assert_eq!(status.first_instances, [at + 1]);
        let addresses = |s: &ClusterStatus| s.hosts.iter().map(|h| h.address).collect::<Vec<_>>();
        let before = addresses(&status);
        supervisor.remove_member("replica/3").expect("remove");
        supervisor.remove_member("replica/2").expect("remove");
        let error = supervisor.remove_member("replica/0").expect_err("the last");
        assert!(error.to_string().contains("last replica"), "{error}");
        assert_eq!(addresses(&supervisor.status())[..4], before[..4]);
        assert!(supervisor.down().expect("down").clean_at.is_some());
        drop(supervisor);
        spec.acceptors = "5".parse().expect("acceptors");
        let error = Supervisor::start(spec).expect_err("by no such way");
        assert!(error.to_string().contains("inband member"), "{error}");
    }
}

#[test]
fn of_a_host_that_is_not_taken_in_nothing_is_left() {
    for network in networks() {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = spec(dir.path(), network);
        let supervisor = Supervisor::start(spec.clone()).expect("up");
        let before = names(&supervisor.status());
        let marker = mark(&spec, "refuse");
        let error = supervisor
            .add_member(MemberKind::Replica)
            .expect_err("refused");
        assert!(error.to_string().contains("refused on purpose"), "{error}");
        let error = supervisor
            .replace_member("acceptor/1")
            .expect_err("refused");
        assert!(error.to_string().contains("refused on purpose"), "{error}");
        supervisor.remove_member("acceptor/1").expect_err("refused");
        assert_eq!(names(&supervisor.status()), before);
        assert!(!spec.data.join("hosts/replica-3").exists());
        assert!(!spec.data.join("hosts/acceptor-3").exists());
        if network == NetworkChoice::Namespaces {
            assert_eq!(namespaces_of(&supervisor.status().name).len(), 8);
        }
        fs::remove_file(marker).expect("mend");
        // Their ids and names are used up nevertheless.
        let name = supervisor.add_member(MemberKind::Replica).expect("add");
        assert_eq!(name, "replica/4");
        assert_eq!(names(&supervisor.status())[7].0, 10);

        let broken = spec.data.join("hosts/replica-5");
        fs::create_dir_all(&broken).expect("directory");
        fs::write(broken.join("fail"), "").expect("marker");
        let error = supervisor
            .add_member(MemberKind::Replica)
            .expect_err("it fails")
            .to_string();
        assert!(
            error.starts_with("replica/5 stopped at its start"),
            "{error}"
        );
        assert_eq!(supervisor.status().hosts.len(), 8);
    }
}

#[test]
fn a_change_that_the_supervisor_does_not_see_the_end_of_is_settled_by_the_next_one() {
    for taken_in in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let spec = spec(dir.path(), NetworkChoice::Loopback);
        let supervisor = Supervisor::start(spec.clone()).expect("up");
        mark(&spec, "pending");
        std::thread::scope(|scope| {
            let add = scope.spawn(|| supervisor.add_member(MemberKind::Replica));
            let deadline = Instant::now() + TIMEOUT;
            let doing = || match remote::ask(&spec.data, &remote::SupervisorRequest::Progress) {
                Ok(remote::SupervisorReply::Progress { doing }) => doing.unwrap_or_default(),
                other => panic!("{other:?}"),
            };
            while !doing().contains("epoch 2") {
                assert!(Instant::now() < deadline, "{}", doing());
                std::thread::sleep(Duration::from_millis(5));
            }
            let error = supervisor
                .remove_member("leader/0")
                .expect_err("one at a time");
            assert!(error.to_string().contains("another change"), "{error}");
            supervisor.down().expect("down");
            let error = add.join().expect("no panic").expect_err("interrupted");
            assert!(error.to_string().contains("interrupted"), "{error}");
        });
        drop(supervisor);
        let record = fs::read_to_string(spec.data.join("cluster.json")).expect("record");
        assert!(record.contains("replica/3"), "{record}");

        let path = spec.data.join("plane.json");
        let text = fs::read_to_string(&path).expect("plane");
        let mut plane: inband_control::state::State = serde_json::from_str(&text).expect("JSON");
        let pending = plane.pending.take().expect("a pending change");
        if taken_in {
            plane.opened = Some(pending.target);
        }
        fs::write(&path, serde_json::to_string(&plane).expect("JSON")).expect("write");
        let mut again = spec.clone();
        again.accept_loss = true;
        let supervisor = Supervisor::start(again).expect("up");
        let hosts = names(&supervisor.status());
        assert_eq!(hosts.len(), if taken_in { 8 } else { 7 }, "{hosts:?}");
        let record = fs::read_to_string(spec.data.join("cluster.json")).expect("record");
        assert_eq!(record.contains("replica/3"), taken_in, "{record}");
        assert!(!record.contains("\"changing\": true"), "{record}");
    }
}
