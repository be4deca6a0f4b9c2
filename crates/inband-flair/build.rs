//! Builds `dataplane/flair`.

fn main() {
    inband_ground_build::Folder::new("flair").build();
}
