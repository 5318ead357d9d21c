use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::Barrier;

use super::*;

/// Environment variable with the folder of all runs. A test process with this variable acts as the run that the test
/// kills.
const HOLDER: &str = "XTASK_TEST_HOLDER";

/// Time after which a step of these tests counts as hanging. No step takes this long, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "timeout: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_alive(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
#[allow(clippy::zombie_processes, reason = "the test leaves a process on purpose")]
fn a_killed_run_blocks_no_other_and_leaves_nothing() {
    if let Some(home) = std::env::var_os(HOLDER) {
        // This process acts as the run that the test kills. It takes a lock, and creates a folder and a child process.
        let home = PathBuf::from(home);
        let _lock = Lock::take(&home.with_extension("lock"), "a test").unwrap();
        let folder = Folder::open(&home).unwrap();
        fs::write(folder.path.join("file"), "of a run that is killed").unwrap();
        let program = Command::new("sleep").arg("3600").env(VARIABLE, &folder.path).spawn().unwrap();
        println!("\nready {} {}", program.id(), folder.path.display());
        std::thread::sleep(Duration::from_secs(3600));
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let home = place.path().join("runs");
    let mut killed = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "place::tests::a_killed_run_blocks_no_other_and_leaves_nothing", "--nocapture"])
        .env(HOLDER, &home)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(killed.stdout.take().unwrap()).lines().map_while(Result::ok);
    let ready = said.find_map(|line| line.strip_prefix("ready ").map(str::to_owned)).expect("the run holds the lock");
    let (program, folder) = ready.split_once(' ').unwrap();

    // While the run lives, it keeps its folder, its child process and its lock.
    let beside = Folder::open(&home).unwrap();
    assert!(Path::new(folder).join("file").exists() && beside.path != Path::new(folder));
    assert!(is_alive(program));
    let lock = home.with_extension("lock");
    let holder = fs::read_to_string(&lock).unwrap();
    assert!(holder.starts_with(&format!("process {}, `cargo xtask ", killed.id())), "{holder}");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| Lock::take(&lock, "a test").map(drop));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!waiting.is_finished(), "two runs hold the lock");
        killed.kill().unwrap();
        killed.wait().unwrap();
        waiting.join().unwrap().unwrap();
    });

    let next = Folder::open(&home).unwrap();
    assert!(!Path::new(folder).exists(), "the folder of a run that was killed is still there");
    until("the child process of the killed run has ended", || !is_alive(program));
    assert!(beside.path.exists() && next.path.exists());
    assert_eq!(next.close(true), Ok(None));
    assert!(beside.path.exists());
}

#[test]
fn concurrent_runs_have_separate_folders() {
    const RUNS: usize = 8;
    let home = tempfile::tempdir().unwrap();
    let (begin, end) = (Barrier::new(RUNS), Barrier::new(RUNS));
    std::thread::scope(|scope| {
        for run in 0..RUNS {
            let (home, begin, end) = (home.path(), &begin, &end);
            scope.spawn(move || {
                begin.wait();
                let folder = Folder::open(home).unwrap();
                let file = folder.path.join("file");
                fs::write(&file, run.to_string()).unwrap();
                end.wait();
                assert_eq!(fs::read_to_string(&file).unwrap(), run.to_string());
                assert_eq!(folder.close(true), Ok(None));
            });
        }
    });
    let left: Vec<_> = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"]);
}

#[test]
fn a_lock_has_one_holder_at_a_time() {
    let place = tempfile::tempdir().unwrap();
    let (file, counted) = (place.path().join("lock"), place.path().join("count"));
    fs::write(&counted, "0").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let _lock = Lock::take(&file, "a test").unwrap();
                    let count: u32 = fs::read_to_string(&counted).unwrap().parse().unwrap();
                    fs::write(&counted, (count + 1).to_string()).unwrap();
                }
            });
        }
    });
    assert_eq!(fs::read_to_string(&counted).unwrap(), "100");
    assert_eq!(fs::read_to_string(&file).unwrap(), "", "no run holds the lock");
}

#[test]
fn the_newest_folders_of_failed_runs_are_kept() {
    let home = tempfile::tempdir().unwrap();
    for run in 0..KEPT + 2 {
        let folder = Folder::open(home.path()).unwrap();
        fs::write(folder.path.join("why"), run.to_string()).unwrap();
        assert_eq!(folder.close(false), Ok(Some(folder.path.as_path())));
        let marker = File::options().write(true).open(folder.path.join(FAILED)).unwrap();
        marker.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(run as u64)).unwrap();
    }
    let last = Folder::open(home.path()).unwrap();
    let folders = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut kept: Vec<String> = folders.filter_map(|path| fs::read_to_string(path.join("why")).ok()).collect();
    kept.sort();
    assert_eq!(kept, ["2", "3", "4"]);
    assert_eq!(last.close(false), Ok(None), "an empty folder is not kept");
}

#[test]
fn a_replaced_file_keeps_its_second_name() {
    let place = tempfile::tempdir().unwrap();
    let [made, public, own] = ["made", "public", "own"].map(|name| place.path().join(name));
    for content in ["one", "two"] {
        fs::write(&made, content).unwrap();
        publish(&made, &public).unwrap();
        assert!(!made.exists());
        link(&public, &own).unwrap();
    }
    fs::write(&made, "three").unwrap();
    publish(&made, &public).unwrap();
    assert_eq!(
        (fs::read_to_string(&own).unwrap(), fs::read_to_string(&public).unwrap()),
        ("two".into(), "three".into())
    );
    let error = publish(&made, &public).unwrap_err();
    assert!(error.contains("could not be moved"), "{error}");
}
