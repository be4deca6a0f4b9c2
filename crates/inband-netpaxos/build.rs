//! Builds `dataplane/netpaxos`.

fn main() {
    inband_ground_build::Folder::new("netpaxos").build();
}
