//! Builds `dataplane/paxos`.

fn main() {
    inband_ground_build::Folder::new("paxos")
        .header("bench.h")
        .build();
}
