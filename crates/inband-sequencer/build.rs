//! Builds `dataplane/sequencer`.

fn main() {
    inband_ground_build::Folder::new("sequencer").build();
}
