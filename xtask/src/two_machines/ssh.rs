//! `doorbell study --via ssh` between machines, with Debian's OpenSSH.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Output;
use std::time::Instant;

use super::cluster::{Cluster, address, read};
use super::study::expect;
use super::{PATIENCE, TwoMachines};
use crate::peers;
use crate::programs::doorbell;
use crate::shell::{Running, command, output_of, run};
use crate::test::StepEnd;

/// Number of machines: the measuring machine, and the machines that it reaches by ssh.
const MACHINES: usize = 3;

/// Script that connects to the coordinator like a `doorbell` of another release.
const OTHER_RELEASE: &str = r#"#!/bin/bash
read -r told
port=$(sed 's/.*"port":\([0-9]*\).*/\1/' <<< "$told") token=$(sed 's/.*"token":"\([^"]*\)".*/\1/' <<< "$told")
exec 3<> "/dev/tcp/${SSH_CONNECTION%% *}/$port" || exit
echo "{\"rank\":1,\"ranks\":3,\"doorbell\":\"0.0.1\",\"token\":\"$token\"}" >&3
read -r answer <&3
exit 1
"#;

/// Starts a study on one machine, which starts the hosts of the study through the OpenSSH daemons of two other
/// machines. Checks that the study reports hosts that did not start, that all points are complete, and that a killed
/// study leaves no process.
pub(crate) fn ssh() -> StepEnd {
    if let Some(left_out) = TwoMachines::are_impossible() {
        return left_out;
    }
    let programs = [("sshd", "openssh-server"), ("ssh", "openssh-client"), ("ssh-keygen", "openssh-client")];
    if let Some((program, package)) = programs.into_iter().find(|(program, _)| !peers::has(program)) {
        return StepEnd::LeftOut(format!("there is no {program}; Debian's package is {package}"));
    }
    over_ssh().into()
}

fn over_ssh() -> Result<(), String> {
    // All processes of this run have this unique directory in their arguments, so `started` can find them.
    let directory = tempfile::Builder::new().prefix("doorbell-ssh-").tempdir().map_err(|error| error.to_string())?;
    let machines = Machines { cluster: Cluster::new(MACHINES, 1500)?, directory: directory.path() };
    machines.prepare().map_err(|error| format!("{}: {error}", directory.path().display()))??;
    let _daemons: Vec<Running> = (1..MACHINES).map(|machine| machines.daemon(machine)).collect::<Result<_, _>>()?;
    let (first, second) = (address(1), address(2));

    let absent = machines.study(&["--remote", &machines.path("none"), &first, &second])?;
    expect(&absent, 1, &[&format!("{first}: ssh has ended"), "no doorbell of this release called"])?;
    let other = machines.study(&["--remote", &machines.path("other"), &first, &second])?;
    expect(&other, 1, &["release 0.0.1 of Doorbell", &format!("{first}: ssh has ended")])?;
    let remote = machines.path("doorbell");
    let finished = machines.study(&["--remote", &remote, &first, &second])?;
    expect(&finished, 0, &["host 2: ", "report.html"])?;
    let records = read(&directory.path().join("records"))?;
    for (file, record) in &records {
        let others = record.pointer("/environment/hosts").and_then(serde_json::Value::as_array).map_or(0, Vec::len);
        if others + 1 != MACHINES {
            return Err(format!("{}: {others} other hosts", file.display()));
        }
    }
    machines.wait_until_all_end()?;

    let mut killed = Running::start(machines.command("unfinished", &["--full", "--remote", &remote, &first, &second]))?;
    killed.wait_for("host 0: ", PATIENCE)?;
    if machines.started()?.is_empty() {
        return Err("the study has started no processes on other machines".to_owned());
    }
    drop(killed); // kills the study by SIGKILL
    machines.wait_until_all_end()?;
    eprintln!("ssh: {} points on three machines, and no process remains after the first one is killed", records.len());
    Ok(())
}

struct Machines<'a> {
    cluster: Cluster,
    /// Folder with the keys, the configurations and the remote programs.
    directory: &'a Path,
}

impl Machines<'_> {
    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    /// Creates the keys of the daemons and of the user, and writes the configurations of both sides.
    fn prepare(&self) -> std::io::Result<Result<(), String>> {
        let at = self.directory.display();
        for key in ["host", "user"] {
            let made = command("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &self.path(key)]);
            if let Err(why) = run(made) {
                return Ok(Err(why));
            }
        }
        fs::copy(self.path("user.pub"), self.path("authorized"))?;
        // The folder `client` replaces /etc/ssh on the measuring machine.
        let client = self.directory.join("client");
        fs::create_dir(&client)?;
        let host = fs::read_to_string(self.path("host.pub"))?;
        let known: String = (1..MACHINES).map(|machine| format!("{} {host}", address(machine))).collect();
        fs::write(client.join("known"), known)?;
        let asks = format!(
            "Host *\nUser root\nIdentityFile {at}/user\nIdentitiesOnly yes\nUserKnownHostsFile {at}/client/known\n\
             GlobalKnownHostsFile none\nStrictHostKeyChecking yes\nBatchMode yes\n"
        );
        fs::write(client.join("ssh_config"), asks)?;
        for machine in 1..MACHINES {
            let serves = format!(
                "ListenAddress {}\nHostKey {at}/host\nAuthorizedKeysFile {at}/authorized\nStrictModes no\nUsePAM no\n\
                 PermitRootLogin prohibit-password\nPasswordAuthentication no\nPidFile none\n",
                address(machine)
            );
            fs::write(self.path(&format!("sshd-{machine}")), serves)?;
        }
        // Without PAM, the daemon rejects a user whose password is locked, so replace /etc/shadow.
        fs::write(self.path("shadow"), "root:*:19000:0:99999:7:::\n")?;
        symlink(doorbell(), self.path("doorbell"))?;
        fs::write(self.path("other"), OTHER_RELEASE)?;
        fs::set_permissions(self.path("other"), fs::Permissions::from_mode(0o755))?;
        Ok(Ok(()))
    }

    /// Starts the daemon of a machine and waits until it listens. Mounts replace some system files for this daemon
    /// only.
    fn daemon(&self, machine: usize) -> Result<Running, String> {
        const START: &str = "mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && mount --bind \"$0/shadow\" /etc/shadow \
                             && exec \"$(PATH=$PATH:/usr/sbin:/sbin command -v sshd)\" -D -e -f \"$0/sshd-$1\"";
        let (at, number) = (self.directory.display().to_string(), machine.to_string());
        let mut daemon = Running::start(self.cluster.command(machine, "sh", &["-c", START, &at, &number]))?;
        daemon.wait_for("Server listening on", PATIENCE)?;
        Ok(daemon)
    }

    /// Returns the command of a study by ssh on the first machine. The records go to a directory with the name
    /// `records`.
    fn command(&self, records: &str, words: &[&str]) -> std::process::Command {
        const START: &str = "mount --bind \"$0/client\" /etc/ssh && exec \"$@\"";
        let (at, doorbell, out) =
            (self.directory.display().to_string(), doorbell().display().to_string(), self.path(records));
        let study = ["study", "hosts/pairs", "-d", "doorbell0", "--out", &out, "--via", "ssh"];
        let asks = [&["-c", START, &at, &doorbell][..], &study, words].concat();
        let mut command = self.cluster.command(0, "sh", &asks);
        command.env_remove("DOORBELL_TOKEN");
        command
    }

    fn study(&self, words: &[&str]) -> Result<Output, String> {
        let mut command = self.command("records", words);
        command.output().map_err(|error| format!("{command:?}: {error}"))
    }

    /// Returns the processes of this run that ssh has started.
    fn started(&self) -> Result<Vec<String>, String> {
        let at = self.directory.display().to_string();
        let all = output_of(command("ps", &["-e", "-ww", "-o", "pid=", "-o", "args="]))?;
        let is_own = |line: &&str| line.contains(&at) && line.contains("--called-by-ssh");
        Ok(all.lines().filter(is_own).map(str::to_owned).collect())
    }

    /// Waits until all processes that ssh started have ended.
    fn wait_until_all_end(&self) -> Result<(), String> {
        let until = Instant::now() + PATIENCE / 5;
        loop {
            let left = self.started()?;
            match left.is_empty() {
                true => return Ok(()),
                false if Instant::now() > until => return Err(format!("processes are left: {}", left.join("; "))),
                false => std::thread::sleep(std::time::Duration::from_millis(20)),
            }
        }
    }
}
