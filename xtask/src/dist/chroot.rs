//! A minimal Debian system in a folder, in which commands run as after a fresh installation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::place::{self, Lock};
use crate::shell::{Running, command, run, target};
use crate::{network, peers};

/// Packages that commands install in a chroot. The stored system has them downloaded, and not installed.
const DOWNLOADED: &str = "ca-certificates curl ibverbs-utils perftest";

/// Number of the recipe of the stored system. Each change of the recipe needs a new number.
const RECIPE: u32 = 2;

/// Path in a chroot, with the programs for an administrator.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Maximum time of a command in a chroot.
const PATIENCE: Duration = Duration::from_secs(300);

/// Mirror of Debian.
const MIRROR: &str = "http://deb.debian.org/debian";

/// A folder with a Debian system. Dropping it removes the folder.
pub(super) struct Chroot(PathBuf);

impl Chroot {
    /// Unpacks a fresh system with the release of this machine. An error is the reason why this machine cannot do so.
    pub(super) fn new(name: &str) -> Result<Self, String> {
        if !peers::is_root() {
            return Err("only root can use a chroot".to_owned());
        }
        if !peers::has("mmdebstrap") {
            return Err("there is no mmdebstrap".to_owned());
        }
        let about = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let release = release(&about).ok_or("this machine is no release of Debian, whose library of C would fit")?;
        let stored = stored(release)?;
        let chroot = Self(place::own().join("chroots").join(name));
        fs::create_dir_all(&chroot.0).map_err(|error| format!("{}: {error}", chroot.0.display()))?;
        let (from, to) = (stored.to_string_lossy(), chroot.0.to_string_lossy());
        run(command("tar", &["--extract", "--preserve-permissions", "--numeric-owner", "-f", &from, "-C", &to]))?;
        // The network of this machine may have changed since the system was stored.
        let servers = "etc/resolv.conf";
        fs::copy(Path::new("/").join(servers), chroot.path(servers)).map_err(|error| format!("{servers}: {error}"))?;
        Ok(chroot)
    }

    /// Unpacks a fresh system for a container's image, such as `debian:bookworm`. An error is the reason why this
    /// machine cannot do so.
    pub(super) fn of_image(image: &str, name: &str) -> Result<Self, String> {
        let chroot = Self::new(name)?;
        let about = fs::read_to_string(chroot.path("etc/os-release")).unwrap_or_default();
        let own = format!("debian:{}", release(&about).unwrap_or_default());
        if own == image { Ok(chroot) } else { Err(format!("the image {image} is not {own}, this machine's system")) }
    }

    /// Returns the path of a file in the chroot.
    pub(super) fn path(&self, file: impl AsRef<Path>) -> PathBuf {
        self.0.join(file)
    }

    /// Runs a command in the chroot, as root or as another user, and returns its standard output. The command has the
    /// network of the caller, and processes and mounts of its own, which disappear with it.
    pub(super) fn output(&self, user: Option<&str>, words: &[&str]) -> Result<String, String> {
        Running::start(self.command(user, words))?.finish(PATIENCE).map(|(output, _)| output)
    }

    fn command(&self, user: Option<&str>, words: &[&str]) -> Command {
        let script = "mount -t proc proc \"$0/proc\" && mount -t tmpfs -o mode=1777 tmpfs \"$0/dev/shm\" && \
            exec chroot \"$@\"";
        let mut enter = command("unshare", &["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]);
        enter.arg(&self.0).args(user.map(|user| format!("--userspec={user}:"))).arg(&self.0).args(words);
        // Variables of cargo and of this machine must not reach the programs, except for the proxies of apt-get.
        let kept = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().to_lowercase().ends_with("_proxy"));
        enter.env_clear().envs(kept).envs(place::own_if_open().map(|own| (place::VARIABLE, own)));
        enter.envs([("PATH", PATH), ("LC_ALL", "C.UTF-8"), ("HOME", "/tmp"), ("DEBIAN_FRONTEND", "noninteractive")]);
        enter
    }
}

impl Drop for Chroot {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("{} could not be removed: {error}", self.0.display());
        }
    }
}

/// Returns the archive of a minimal system, which lasts between runs. Makes it if it is missing, in half a minute.
fn stored(release: &str) -> Result<PathBuf, String> {
    let home = target().join("xtask").join("chroot");
    let _alone = Lock::take(&home.join("lock"), "a minimal system of Debian")?;
    let stored = home.join(format!("{release}-{RECIPE}.tar"));
    if !stored.exists() {
        let fresh = place::own().join("chroot.tar");
        // Debian's lists and these packages stay in the system, so most runs need no network.
        let download =
            format!("chroot \"$1\" apt-get install --download-only --yes --no-install-recommends {DOWNLOADED}");
        let hook = format!("--customize-hook={download}");
        let options = ["--quiet", "--mode=root", "--format=tar", "--variant=apt", "--skip=cleanup/apt", &hook];
        let mut make = command("mmdebstrap", &options);
        make.arg(release).arg(&fresh).arg(MIRROR);
        network::outside(|| run(make)).map_err(|why| format!("no minimal system of Debian could be made: {why}"))?;
        place::publish(&fresh, &stored)?;
    }
    let own = place::own_file("chroot.tar");
    place::link(&stored, &own)?;
    Ok(own)
}

/// Returns the name of the release in the text of `/etc/os-release`, if the system is Debian.
fn release(about: &str) -> Option<&str> {
    let value = |key: &str| about.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    value("VERSION_CODENAME").filter(|_| value("ID") == Some("debian"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_debian_has_a_release() {
        assert_eq!(release("ID=debian\nVERSION_CODENAME=bookworm\n"), Some("bookworm"));
        assert_eq!(release("VERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n"), None);
        assert_eq!(release("ID=debian\n"), None);
    }

    #[test]
    fn commands_run_as_their_user_in_the_chroot() {
        let folder = tempfile::tempdir().expect("a temporary folder can be created");
        let chroot = Chroot(folder.path().join("root"));
        fs::create_dir(&chroot.0).expect("the temporary folder can be written");
        let command = chroot.command(Some("65534"), &["true"]);
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let root = chroot.0.to_string_lossy().into_owned();
        assert_eq!(words[words.len() - 4..], [root.as_str(), "--userspec=65534:", root.as_str(), "true"]);
        drop(chroot);
        assert!(!folder.path().join("root").exists());
    }
}
