//! Examination of this machine, of other machines, and of the paths between them.

use std::net::IpAddr;

use doorbell_exchange::address;
use doorbell_verbs::Device;

use crate::hosts::{fits, same_host};
use doorbell_machine::doctor::{self, Finding, Severity};
use doorbell_record::Environment;
use doorbell_study::Failure;
use doorbell_study::path;
use doorbell_study::session::{Client, Introduced, Introduction, SessionError};

/// Command that the user starts on another machine, so that this machine can examine it.
const THERE: &str = "doorbell doctor --listen";

/// Findings about this machine, or about another machine and the path to that machine.
#[derive(Debug)]
pub struct Examined {
    /// Name of the machine that the user gave.
    pub name: String,
    /// Environment of the machine, if the machine could be examined.
    pub environment: Option<Environment>,
    /// ID of the process that answered on that machine.
    process: Option<u64>,
    /// Findings about the machine.
    pub findings: Vec<Finding>,
}

impl Examined {
    /// Returns the entry of a machine that could not be examined. `finding` has the reason.
    fn not(name: &str, finding: Finding) -> Self {
        Self { name: name.to_owned(), environment: None, process: None, findings: vec![finding] }
    }

    /// Returns the severity of the worst finding.
    pub fn worst(&self) -> Severity {
        self.findings.iter().map(|finding| finding.severity).max().unwrap_or(Severity::Fine)
    }
}

/// Settings of an examination.
pub struct Examination<'a> {
    /// Introduction of this machine to the others.
    pub introduction: Introduction,
    /// Bytes of message memory that measurements need.
    pub memory_bytes: usize,
    /// Function that opens the device. Its argument is the address at which another machine reaches this machine.
    pub open: &'a dyn Fn(Option<IpAddr>) -> Result<Device, Failure>,
}

impl std::fmt::Debug for Examination<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Examination").field("memory_bytes", &self.memory_bytes).finish_non_exhaustive()
    }
}

impl Examination<'_> {
    /// Examines this machine and these hosts. `at` returns the address of a host with its port.
    pub fn of_all(&self, hosts: &[String], at: impl Fn(&str) -> String) -> Vec<Examined> {
        let mut examined = vec![self.this_machine()];
        for host in hosts {
            if examined.iter().any(|other| &other.name == host) {
                examined.push(Examined::not(host, named_twice(format!("{host} is named twice"))));
                continue;
            }
            let other = self.other_machine(host, &at(host)).map(|mut other| {
                let same = examined.iter().find(|known| known.process.is_some() && known.process == other.process);
                other.findings.extend(same.map(|known| named_twice(same_host(host, &known.name))));
                other
            });
            examined.push(other.unwrap_or_else(|error| {
                Examined::not(
                    host,
                    Finding {
                        subject: "control".to_owned(),
                        severity: Severity::Spoils,
                        what: error.to_string(),
                        remedy: format!("start `{THERE}` there with the same token, and open its TCP port"),
                    },
                )
            }));
        }
        examined
    }

    fn this_machine(&self) -> Examined {
        let name = "this machine".to_owned();
        match (self.open)(None) {
            Ok(device) => {
                let attributes = device.attributes();
                let environment = Environment::of(&attributes);
                Examined {
                    name,
                    environment: Some(environment),
                    process: None,
                    findings: doctor::examine(&attributes, self.memory_bytes),
                }
            }
            Err(error) => {
                let finding = Finding {
                    subject: "device".to_owned(),
                    severity: Severity::Spoils,
                    what: error.to_string(),
                    remedy: "run `doorbell devices` for the available devices".to_owned(),
                };
                Examined::not(&name, finding)
            }
        }
    }

    /// Examines another machine at this address, and the path to that machine.
    fn other_machine(&self, host: &str, at: &str) -> Result<Examined, Failure> {
        let connect_with = |segment: Option<u32>| -> Result<_, Failure> {
            Ok(match segment {
                Some(bytes) => address::connect_in_segments(at, THERE, bytes)?,
                None => address::connect(at, THERE)?,
            })
        };
        let introduction = &self.introduction;
        let short = path::probe_control(introduction, connect_with)?;
        // If the path drops long packets, connect with short TCP segments, so that the rest can still be examined.
        let connect = || connect_with(short.as_ref().map(|(_, segment)| *segment));
        let stream = connect()?;
        let toward = address::address_toward(&stream);
        let Introduced { environment, mut findings, process, .. } = Client::meet(stream, introduction.clone())?;
        findings.push(versions(&environment));
        let device = (self.open)(toward)?;
        if let Err(error) = fits(&Environment::of(&device.attributes()), &environment, host)
            && environment.doorbell == env!("CARGO_PKG_VERSION")
        {
            findings.push(Finding {
                subject: "both devices".to_owned(),
                severity: Severity::Spoils,
                what: error.to_string(),
                remedy: "a study refuses to measure between these two".to_owned(),
            });
        }
        findings.push(
            path::probe::<Failure>(&device, environment.active_mtu, introduction, connect)
                .unwrap_or_else(not_found_out),
        );
        findings.extend(short.map(|(finding, _)| finding));
        Ok(Examined { name: host.to_owned(), environment: Some(environment), process, findings })
    }
}

/// Returns the finding that the path could not be examined because of this error.
fn not_found_out(error: Failure) -> Finding {
    let is_broken = matches!(error.downcast_ref(), Some(SessionError::Control(_)));
    let (what, remedy) = match is_broken {
        true => (
            "the control connection broke while full packets of RoCE v2 were sent there and back",
            "examine again; if the connection breaks again, something on the path drops its packets",
        ),
        false => ("no packets of RoCE v2 could be sent there and back", "remove the cause, and examine again"),
    };
    let (subject, severity) = ("path".to_owned(), Severity::Spoils);
    Finding { subject, severity, what: format!("{what}: {error}"), remedy: remedy.to_owned() }
}

fn named_twice(what: String) -> Finding {
    Finding {
        subject: "hosts".to_owned(),
        severity: Severity::Spoils,
        what,
        remedy: "name each host once: a study refuses to measure with one that is named twice".to_owned(),
    }
}

fn versions(theirs: &Environment) -> Finding {
    const OWN: &str = env!("CARGO_PKG_VERSION");
    let is_same = theirs.doorbell == OWN;
    Finding {
        subject: "version".to_owned(),
        severity: if is_same { Severity::Fine } else { Severity::Spoils },
        what: if is_same { OWN.to_owned() } else { format!("{} there, {OWN} here", theirs.doorbell) },
        remedy: if is_same { String::new() } else { "use the same release on both".to_owned() },
    }
}
