//! What lies beneath a mount: the upper layer of an overlay, the file behind a loop device, the parts of a device-mapper device.
//!
//! What must always hold: storage that may be memory is not taken for a disk. A layer that cannot be seen from here (it belongs to
//! another mount namespace, as in a container) counts as one that may be memory.

use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::mount::Mount;

/// Layers on layers that are looked at; more than anyone has.
const DEPTH_MAX: u32 = 8;

/// Why a power loss may take all that is stored on `mount`, if so.
pub(super) fn volatile(mount: &Mount) -> Option<String> {
    below(mount, 0)
}

fn below(mount: &Mount, depth: u32) -> Option<String> {
    if depth > DEPTH_MAX {
        return Some(format!("{}: too many layers to look at", mount.fs));
    }
    if mount.is_memory() {
        return Some(format!("{} lives in memory", mount.fs));
    }
    if mount.fs == "overlay" {
        let Some(upper) = mount.option("upperdir") else { return Some("overlay: it has no upper layer to write to".into()) };
        return at(Path::new(&upper), depth, "overlay: its upper layer");
    }
    device(&mount.device_number()?, depth)
}

/// The same for the mount that holds `path`, which is `role`.
fn at(path: &Path, depth: u32, role: &str) -> Option<String> {
    let found = if path.exists() { super::directory_at(path).ok() } else { None };
    match found.and_then(|(handle, directory)| Mount::of(&handle, &directory).ok()) {
        Some(mount) => below(&mount, depth + 1).map(|why| format!("{role} {}: {why}", path.display())),
        None => Some(format!("{role} {} cannot be seen from here, so it may be memory", path.display())),
    }
}

/// The same for the block device `number` (`major:minor`).
fn device(number: &str, depth: u32) -> Option<String> {
    if depth > DEPTH_MAX {
        return Some(format!("block device {number}: too many layers to look at"));
    }
    let place = std::fs::canonicalize(format!("/sys/dev/block/{number}")).ok()?;
    // A partition is a folder in that of its disk.
    let disk = if place.join("partition").exists() { place.parent()?.to_owned() } else { place };
    let name = disk.file_name()?.to_string_lossy().into_owned();
    if name.starts_with("zram") || name.trim_start_matches("ram").parse::<u32>().is_ok() {
        return Some(format!("/dev/{name} is memory"));
    }
    if let Ok(file) = std::fs::read_to_string(disk.join("loop/backing_file")) {
        let file = file.trim_end_matches('\n');
        return at(Path::new(file.trim_end_matches(" (deleted)")), depth, &format!("/dev/{name}: its file"));
    }
    let parts = std::fs::read_dir(disk.join("slaves")).ok()?;
    parts.flatten().find_map(|part| device(&number_of(&part.path())?, depth + 1).map(|why| format!("/dev/{name}: {why}")))
}

fn number_of(place: &Path) -> Option<String> {
    Some(std::fs::read_to_string(place.join("dev")).ok()?.trim().to_owned())
}

/// `major:minor` of the block device at `path`.
pub(super) fn block_device(path: &str) -> Option<String> {
    let status = std::fs::metadata(path).ok()?;
    let number = status.rdev();
    status.file_type().is_block_device().then(|| format!("{}:{}", libc::major(number), libc::minor(number)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// Runs a command as root; `false` where that cannot be done.
    fn run(line: &str) -> bool {
        Command::new("sh").args(["-c", line]).stdout(std::process::Stdio::null()).status().is_ok_and(|status| status.success())
    }

    /// A tmpfs with an overlay and an ext4 image on it, unmounted at the end.
    struct Layers(tempfile::TempDir);

    impl Drop for Layers {
        fn drop(&mut self) {
            let at = self.0.path().display();
            run(&format!("umount {at}/ext4 {at}/merged {at}/memory 2>/dev/null"));
        }
    }

    #[test]
    fn a_disk_whose_layers_are_memory_is_not_power_safe() {
        let layers = Layers(tempfile::tempdir().unwrap());
        let at = layers.0.path().display().to_string();
        let overlay = format!(
            "cd {at} && mkdir memory merged ext4 && mount -t tmpfs -o size=64m t memory && cd memory && mkdir lower upper work && \
             mount -t overlay overlay -o lowerdir={at}/memory/lower,upperdir={at}/memory/upper,workdir={at}/memory/work {at}/merged"
        );
        if !run(&overlay) {
            println!("SKIP: no overlay can be mounted over a tmpfs here");
            return;
        }
        let found = super::super::detect(Path::new(&format!("{at}/merged"))).unwrap();
        assert_eq!(found.guarantee, crate::Guarantee::ProcessSafe, "{found:?}");
        assert!(found.warnings.iter().any(|why| why.contains("tmpfs lives in memory")), "{:?}", found.warnings);
        if !run(&format!("cd {at}/memory && truncate -s 32M image && mkfs.ext4 -q image && mount -o loop image {at}/ext4")) {
            println!("SKIP: no loop device can be mounted here");
            return;
        }
        let found = super::super::detect(Path::new(&format!("{at}/ext4"))).unwrap();
        assert_eq!((found.fs.as_str(), found.guarantee), ("ext4", crate::Guarantee::ProcessSafe), "{found:?}");
        assert!(found.warnings.iter().any(|why| why.contains("/memory/image")), "{:?}", found.warnings);
    }

    #[test]
    fn a_layer_that_cannot_be_seen_counts_as_memory() {
        let why = at(Path::new("/nothing/is/here"), 0, "overlay: its upper layer").unwrap();
        assert!(why.contains("/nothing/is/here cannot be seen from here"), "{why}");
    }
}
