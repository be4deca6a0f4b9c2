//! Builds `dataplane/box`.

fn main() {
    inband_ground_build::Folder::new("box").build();
}
