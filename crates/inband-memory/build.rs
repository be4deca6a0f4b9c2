//! Builds `dataplane/memory`.

fn main() {
    inband_ground_build::Folder::new("memory").build();
}
