fn main() {
    inband_ground_build::Folder::new("falcon").build();
}
