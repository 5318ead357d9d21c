use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;

use super::*;

/// Returns the path of the test program, which is linked dynamically.
fn own() -> PathBuf {
    std::env::current_exe().unwrap()
}

struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        path
    }
}

/// Returns a small 64-bit ELF file with these program headers. Each header consists of its type and its content.
fn elf(machine: [u8; 2], headers: &[(u32, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes[18..20].copy_from_slice(&machine);
    bytes[32..40].copy_from_slice(&64_u64.to_ne_bytes());
    bytes[54..56].copy_from_slice(&56_u16.to_ne_bytes());
    bytes[56..58].copy_from_slice(&(headers.len() as u16).to_ne_bytes());
    let mut content = Vec::new();
    for (kind, text) in headers {
        let at = 64 + 56 * headers.len() + content.len();
        let mut header = [0; 56];
        header[..4].copy_from_slice(&kind.to_ne_bytes());
        header[8..16].copy_from_slice(&(at as u64).to_ne_bytes());
        header[32..40].copy_from_slice(&(text.len() as u64).to_ne_bytes());
        bytes.extend(header);
        content.extend_from_slice(text);
    }
    bytes.extend(content);
    bytes
}

fn own_machine() -> [u8; 2] {
    let own = fs::read(own()).unwrap();
    [own[18], own[19]]
}

#[test]
fn programs_of_this_system_can_be_reached() {
    assert_eq!(barrier(&own()), None);
    assert_eq!(barrier(Path::new("/bin/sh")), None);
}

#[test]
fn missing_files_and_non_programs_have_no_barrier() {
    let files = Files::new();
    for text in [&b""[..], b"\x7fEL", b"hello", b"#!", b"#!\n", b"#! \n/bin/sh"] {
        assert_eq!(barrier(&files.write("text", text)), None, "{text:?}");
    }
    assert_eq!(barrier(Path::new("/no/such/program")), None);
    assert_eq!(barrier(files.0.path()), None, "a folder");
    let fifo = files.0.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(barrier(&fifo), None, "the check of a FIFO must not wait for a writer");
}

#[test]
fn the_dynamic_linker_decides() {
    let files = Files::new();
    let (load, interpreter) = (1, 3);
    for (name, headers, expected) in [
        ("static", &[(load, &b""[..])][..], Some(Barrier::Static)),
        ("none", &[], Some(Barrier::Static)),
        ("glibc", &[(load, b""), (interpreter, b"/lib64/ld-linux-x86-64.so.2\0")], None),
        ("musl", &[(interpreter, b"/lib/ld-musl-x86_64.so.1\0")], Some(Barrier::OtherLibc)),
        ("nix", &[(interpreter, b"/nix/store/x-glibc-2.40/lib/ld-linux-x86-64.so.2\0")], None),
    ] {
        assert_eq!(barrier(&files.write(name, &elf(own_machine(), headers))), expected, "{name}");
    }
}

#[test]
fn a_program_for_another_machine_is_foreign() {
    let files = Files::new();
    assert_eq!(barrier(&files.write("s390", &elf([22, 0], &[]))), Some(Barrier::Foreign));
    let mut narrow = elf(own_machine(), &[]);
    narrow[4] = 1;
    assert_eq!(barrier(&files.write("i386", &narrow)), Some(Barrier::Foreign));
}

#[test]
fn no_bytes_harm_the_reader() {
    let files = Files::new();
    let good = elf(own_machine(), &[(1, b""), (3, b"/lib64/ld-linux-x86-64.so.2\0")]);
    let path = files.0.path().join("damaged");
    for length in 0..good.len() {
        fs::write(&path, &good[..length]).unwrap();
        let _ = barrier(&path);
    }
    for at in 0..good.len() {
        let mut damaged = good.clone();
        damaged[at] = 0xff;
        fs::write(&path, damaged).unwrap();
        let _ = barrier(&path);
    }
}

#[test]
fn a_script_is_judged_by_its_interpreter() {
    let files = Files::new();
    let linked = files.write("static", &elf(own_machine(), &[]));
    let script = |name: &str, line: &str| files.write(name, format!("{line}\necho\n").as_bytes());
    assert_eq!(barrier(&script("sh", "#!/bin/sh -e")), None);
    let first = script("first", &format!("#! {} -x", linked.display()));
    assert_eq!(barrier(&first), Some(Barrier::Static));
    assert_eq!(barrier(&script("second", &format!("#!{}", first.display()))), Some(Barrier::Static));
    // The check terminates for a script that names itself as its interpreter.
    let circle = files.0.path().join("circle");
    assert_eq!(barrier(&script("circle", &format!("#!{}", circle.display()))), None);
    assert_eq!(barrier(&script("long", &format!("#!/{}", "x".repeat(4096)))), None);
}

#[test]
fn setuid_and_setgid_programs_cannot_be_reached() {
    if !doorbell_testing::root_or_leave_out("tests that change the owner of files") {
        return;
    }
    let files = Files::new();
    let path = files.write("program", &fs::read(own()).unwrap());
    let with = |mode: u32, uid: u32, gid: u32| {
        chown(&path, Some(uid), Some(gid)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        barrier(&path)
    };
    assert_eq!(with(0o4755, 12_345, 0), Some(Barrier::Setuid));
    assert_eq!(with(0o4755, 0, 0), None, "the program runs as the starting user");
    assert_eq!(with(0o2755, 0, 12_345), Some(Barrier::Setgid));
    assert_eq!(with(0o2745, 0, 12_345), None, "without the group's execute bit, setgid concerns locks");
    let script = files.write("script", format!("#!{}\n", path.display()).as_bytes());
    assert_eq!(with(0o4755, 12_345, 0), Some(Barrier::Setuid));
    assert_eq!(barrier(&script), Some(Barrier::Setuid));
    // The kernel ignores the setuid and setgid bits of scripts.
    assert_eq!(with(0o755, 0, 0), None);
    chown(&script, Some(12_345), None).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o4755)).unwrap();
    assert_eq!(barrier(&script), None);
}

/// `execvp` goes on to the next folder if the kernel refuses a file for its rights or for a missing interpreter.
#[test]
fn the_next_folder_is_searched_after_a_program_that_cannot_start() {
    let [first, second] = [Files::new(), Files::new()];
    let lost = first.write("program", b"#!/no/such/interpreter\n");
    let good = second.write("program", b"#!/bin/sh\nexit 7\n");
    let path = format!("{}:{}", first.0.path().display(), second.0.path().display());
    let (name, mut tried) = (OsStr::new("program"), Vec::new());
    let started = first_of_programs(name, OsStr::new(&path), |found| {
        tried.push(found.to_owned());
        Command::new(found).status().ok()
    });
    assert_eq!(tried, [lost, good]);
    assert_eq!(started.and_then(|status| status.code()), Some(7));
}

#[test]
fn names_are_looked_up_as_a_shell_does() {
    let files = Files::new();
    let here = files.write("program", b"#!/bin/sh\n");
    fs::write(files.0.path().join("data"), "").unwrap();
    fs::create_dir(files.0.path().join("folder")).unwrap();
    let path = format!("/no/such:{}:/{}", files.0.path().display(), "x".repeat(5000));
    let find = |name: &str| with_program(OsStr::new(name), OsStr::new(&path), Path::to_path_buf);
    assert_eq!(find("program"), Some(here.clone()));
    assert_eq!(find("data"), None, "the file is not executable");
    assert_eq!(find("folder"), None);
    assert_eq!(find(&"y".repeat(5000)), None);
    assert_eq!(find("./anything"), Some(PathBuf::from("./anything")));
    // A shell finds the same file for this name.
    let found = Command::new("/bin/sh").args(["-c", "command -v program"]).env("PATH", path).output().unwrap();
    assert_eq!(String::from_utf8(found.stdout).unwrap().trim(), here.to_string_lossy());
}
