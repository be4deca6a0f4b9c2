//! Builds `dataplane/ground`.

use inband_ground_build::Folder;

fn main() {
    Folder::new("ground")
        .header("native/gate.h")
        .header("native/keys.h")
        .header("native/role.h")
        .header("xdp/settings.h")
        .header("xdp/trial.h")
        .header("xdp/lost.h")
        .build();
    if let Ok(folder) = std::env::var("DEP_BPF_INCLUDE") {
        println!("cargo::metadata=bpf_include={folder}");
    }
}
