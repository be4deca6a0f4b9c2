//! Builds what `dataplane/` holds.

use inband_ground_build::Folder;

fn main() {
    let ground = [
        "native/keys.h",
        "xdp/settings.h",
        "xdp/trial.h",
        "xdp/lost.h",
    ];
    let ground = ground.iter().fold(Folder::new("ground"), |folder, header| {
        folder.header(header)
    });
    ground.build();
    Folder::new("paxos").header("bench.h").build();
    Folder::new("flair").build();
    Folder::new("falcon").build();
}
