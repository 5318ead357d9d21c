//! A study on several hosts. This machine is one of the hosts and coordinates the study.

use std::cell::Cell;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};

use doorbell_exchange::address::{address_toward, connect};
use doorbell_exchange::admission::Note;
use doorbell_verbs::{Device, DeviceAttributes, soft};

use crate::{MEMORY_BYTES, OwnDevice, THERE};
use doorbell_machine::doctor::Severity;
use doorbell_machine::pinning::{Pinning, ProcessPosition};
use doorbell_record::{Environment, Parameters, PointResult};
use doorbell_study::experiment::{Experiment, Layout};
use doorbell_study::path;
use doorbell_study::session::{
    self, Client, Dealt, HostError, Introduced, Introduction, Parties, SessionError, Terms, Token, measure_on,
    measure_parties,
};
use doorbell_study::{Failure, Usage};

/// Name of this machine among the hosts of a study.
const HERE: &str = "this machine";

/// The other hosts of a study.
pub trait Others {
    /// Returns the names of the other hosts, for messages.
    fn names(&self) -> Vec<String>;

    /// Returns a control connection to the other host with this index. That host serves measurements of this process.
    ///
    /// # Errors
    ///
    /// The host is unreachable.
    fn reach(&self, number: usize) -> Result<TcpStream, Failure>;

    /// Returns the token that the other hosts require.
    fn token(&self) -> Option<Token>;

    /// Tells the other hosts that the study has ended.
    fn dismiss(&self) {}
}

/// Hosts on which a user has started `doorbell study --listen`.
pub struct Listening {
    addresses: Vec<String>,
    token: Option<Token>,
}

impl Listening {
    /// Returns the hosts at these addresses. Each address must belong to a different host.
    ///
    /// # Errors
    ///
    /// Two addresses belong to one host.
    pub fn new(addresses: Vec<String>, token: Option<Token>) -> Result<Self, Usage> {
        let mut found: Vec<(&str, Vec<SocketAddr>)> = Vec::new();
        for address in &addresses {
            let own: Vec<_> = address.to_socket_addrs().into_iter().flatten().collect();
            if let Some((other, _)) = found.iter().find(|(_, others)| own.iter().any(|own| others.contains(own))) {
                return Err(Usage(same_host(address, other)));
            }
            found.push((address, own));
        }
        Ok(Self { addresses, token })
    }
}

impl Others for Listening {
    fn names(&self) -> Vec<String> {
        self.addresses.clone()
    }

    fn reach(&self, number: usize) -> Result<TcpStream, Failure> {
        Ok(connect(&self.addresses[number], THERE)?)
    }

    fn token(&self) -> Option<Token> {
        self.token.clone()
    }
}

/// Error about a host that is unreachable or has gone. The study cannot continue.
#[derive(Debug)]
pub struct Gone(String);

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Gone {}

/// Connections to all hosts of a study: first this machine, then the other hosts.
pub struct Reach<'a> {
    own: &'a dyn OwnDevice,
    note: Note,
    introduction: Introduction,
    others: Box<dyn Others>,
    /// Names of all hosts, with this machine first.
    names: Vec<String>,
    /// CPUs for the threads of a point on this machine. A point with few threads uses only some of these CPUs.
    pinning: Pinning,
    /// Position of each host among those hosts that are processes of the same machine.
    places: Vec<ProcessPosition>,
    /// Address at which the other hosts reach this machine's device; `None` if all hosts are on this machine.
    toward: Option<IpAddr>,
}

/// Control connections to the hosts, each with the name of the host and the position of the host on its machine.
type Named = Vec<(String, TcpStream, ProcessPosition)>;

/// Thread of the end of a point that runs on this machine.
type OwnEnd = std::thread::JoinHandle<Result<(), SessionError>>;

impl<'a> Reach<'a> {
    /// Returns connections to these hosts, without pinning. `toward` is the address at which the hosts reach this
    /// machine's device, if known.
    pub fn new(own: &'a dyn OwnDevice, others: Box<dyn Others>, toward: Option<IpAddr>, note: Note) -> Self {
        let introduction = Introduction { token: others.token(), ..Introduction::default() };
        let mut names = vec![HERE.to_owned()];
        names.extend(others.names());
        let places = vec![ProcessPosition::default(); names.len()];
        Self { own, note, introduction, others, names, pinning: Pinning::default(), places, toward }
    }

    /// Sets the pinning of the end on this machine, and the positions of all hosts.
    pub fn pinned(self, pinning: Pinning, places: Vec<ProcessPosition>) -> Self {
        Self { pinning, places, ..self }
    }

    /// Leaves out the series that these hosts cannot measure together, and prints the names of those series.
    ///
    /// # Errors
    ///
    /// No series remains, or a point needs more queue pairs than a device has.
    pub fn fit(
        &self,
        experiments: &mut Vec<Experiment>,
        (most, whose): &(usize, String),
        are_soft: bool,
    ) -> Result<(), Usage> {
        let (hosts, parties) = (self.names.len(), Parties::deal(self.names.len()));
        let mut nothing_left = None;
        for experiment in experiments.iter_mut() {
            let mut lacks: Option<&'static str> = None;
            let mut left_out: Vec<String> = Vec::new();
            experiment.points.retain(|point| {
                let lack = point.parameters.far.as_deref().and_then(|far| parties.lacks(far, are_soft));
                if lack.is_some() && !left_out.contains(&point.series) {
                    left_out.push(point.series.clone());
                }
                lacks = lacks.or(lack);
                lack.is_none()
            });
            let name = &experiment.name;
            match lacks {
                Some(why) if experiment.points.is_empty() => {
                    if let Some(before) =
                        nothing_left.replace(format!("{name} cannot be measured on {hosts} hosts: {why}"))
                    {
                        (self.note)(&before);
                    }
                }
                Some(why) => (self.note)(&format!("{name} omits {} on {hosts} hosts: {why}", left_out.join(", "))),
                None => {}
            }
            for point in &experiment.points {
                let needed = match point.parameters.far.as_deref() {
                    Some(far) => parties.queue_pairs(far),
                    None => {
                        let dealt = Dealt::new(experiment.layout, point.parameters.connections, hosts);
                        dealt.shares().iter().map(|share| share.lanes.len()).max().unwrap_or(0)
                    }
                };
                if needed > *most {
                    return Err(Usage(format!(
                        "{name} needs {needed} queue pairs of a host, {whose} has {most}: leave out {name}"
                    )));
                }
            }
        }
        experiments.retain(|experiment| !experiment.points.is_empty());
        match nothing_left {
            Some(sentence) if experiments.is_empty() => Err(Usage(sentence)),
            Some(sentence) => {
                (self.note)(&sentence);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Measures a point, with a new device on each participating host.
    ///
    /// # Errors
    ///
    /// A host is gone ([`Gone`]), or the measurement failed.
    pub fn measure(&self, layout: Layout, parameters: &Parameters) -> Result<PointResult, Failure> {
        let result = repeat_if_apart(|| self.measure_once(layout, parameters))?;
        result.map_err(|error| if error.is_gone() { Gone(error.to_string()).into() } else { error.into() })
    }

    fn measure_once(&self, layout: Layout, parameters: &Parameters) -> Result<Result<PointResult, HostError>, Failure> {
        let introduction = &self.introduction;
        let hosts = self.names.len();
        let (result, own) = match parameters.far.as_deref() {
            Some(far) => {
                let parties = Parties::deal(hosts);
                let (streams, own) = self.streams(parties.duties(far).iter().map(|(host, _)| *host))?;
                (measure_parties(streams, introduction, parameters, &parties), own)
            }
            None => {
                let bytes = *parameters.sizes.first().ok_or("a point has one size")?;
                let dealt = Dealt::new(layout, parameters.connections, hosts);
                let (streams, own) = self.streams(dealt.shares().iter().map(|share| share.host))?;
                (measure_on(streams, introduction, parameters, bytes, &dealt), own)
            }
        };
        if let Some(own) = own {
            // Ignore an error of the thread: the coordinator has received the error over the control connection.
            let _ = own.join();
        }
        Ok(result)
    }

    /// Returns control connections to these hosts with their names, and the thread of the end on this machine.
    fn streams(&self, hosts: impl Iterator<Item = usize>) -> Result<(Named, Option<OwnEnd>), Failure> {
        let (mut streams, mut own) = (Vec::new(), None);
        for host in hosts {
            let stream = match host.checked_sub(1) {
                Some(number) => self.others.reach(number).map_err(|error| Gone(error.to_string()))?,
                None => {
                    let (stream, end) = self.here()?;
                    own = Some(end);
                    stream
                }
            };
            streams.push((self.names[host].clone(), stream, self.places[host]));
        }
        Ok((streams, own))
    }

    /// Starts the end of a point on this machine: a thread that the coordinator reaches like another host.
    fn here(&self) -> Result<(TcpStream, OwnEnd), Failure> {
        let device = self.own.open(self.toward)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let own = stream.local_addr()?;
        let accepted = loop {
            match listener.accept()? {
                (accepted, from) if from == own => break accepted,
                _ => {} // a stranger, which is disconnected
            }
        };
        let terms = Terms { pinning: self.pinning.clone(), is_known: true, ..Terms::open(MEMORY_BYTES) };
        Ok((stream, std::thread::spawn(move || session::serve(device, accepted, &terms))))
    }
}

/// All hosts of a study, with this machine.
pub struct Hosts<'a> {
    reach: Reach<'a>,
    /// Environment of the records: that of this machine, with those of the other hosts.
    pub environment: Environment,
    /// Lowest queue pair limit of the devices, and the name of the host with that device.
    queue_pairs: (usize, String),
    /// Whether one of the hosts has gone, so that the study ends.
    is_lost: Cell<bool>,
}

impl<'a> Hosts<'a> {
    /// Introduces all hosts to each other, and checks whether they can measure together.
    ///
    /// # Errors
    ///
    /// A host is unreachable, or cannot measure with the others.
    pub fn meet(own: &'a dyn OwnDevice, others: Box<dyn Others>, note: Note) -> Result<Self, Failure> {
        let mut reach = Reach::new(own, others, None, note);
        let (mut met, mut toward) = (Vec::new(), None);
        for (number, name) in reach.names[1..].iter().enumerate() {
            let stream = reach.others.reach(number)?;
            toward = toward.or(address_toward(&stream));
            let introduced = Client::meet(stream, reach.introduction.clone());
            met.push(introduced.map_err(|error| not_met(name, &error))?);
        }
        each_once(&reach.names[1..], &met)?;
        reach.toward = toward;
        let device = reach.own.open(toward)?;
        let attributes = device.attributes();
        let pinning = reach.own.pinning(&device)?;
        let own = Environment { pinning: Some(pinning.clone()), ..reach.own.environment(toward, &attributes)? };
        let mut environments = vec![&own];
        environments.extend(met.iter().map(|met| &met.environment));
        let machines: Vec<_> = environments.iter().map(|environment| &environment.machine).collect();
        let places = ProcessPosition::among(&machines);
        let share = |environment: &Environment, place: ProcessPosition| Environment {
            pinning: environment.pinning.as_ref().map(|pinning| pinning.share(place)),
            peer: None,
            hosts: Vec::new(),
            ..environment.clone()
        };
        let mut shared: Vec<_> = environments.iter().zip(&places).map(|(all, place)| share(all, *place)).collect();
        let note_pinning = |environment: &Environment| {
            environment.pinning.as_ref().map_or_else(String::new, |pinning| format!("; {pinning}"))
        };
        let queue_pairs = fewest(&attributes, met.iter().map(|met: &Introduced| met.max_qps).zip(&reach.names[1..]));
        for ((number, name), Introduced { environment, .. }) in reach.names[1..].iter().enumerate().zip(&met) {
            fits(&own, environment, name)?;
            passes(&device, environment.active_mtu, &reach.introduction, || reach.others.reach(number), name)?;
            let Environment { machine, cpu, device, .. } = environment;
            let pinned = note_pinning(&shared[number + 1]);
            note(&format!("host {}: {} ({name}), {cpu}, device {device}{pinned}", number + 1, machine.host));
        }
        note(&format!("host 0: {HERE}{}", note_pinning(&shared[0])));
        let hosts = shared.split_off(1);
        let environment = Environment { hosts, ..shared.swap_remove(0) };
        let reach = reach.pinned(pinning, places);
        Ok(Self { reach, environment, queue_pairs, is_lost: Cell::new(false) })
    }

    /// Leaves out the series that these hosts cannot measure together ([`Reach::fit`]).
    ///
    /// # Errors
    ///
    /// No series remains, or a point needs more queue pairs than a device has.
    pub fn fit(&self, experiments: &mut Vec<Experiment>) -> Result<(), Usage> {
        let all = std::iter::once(&self.environment).chain(&self.environment.hosts);
        self.reach.fit(experiments, &self.queue_pairs, are_soft(all))
    }

    /// Tells the other hosts that the study has ended.
    pub fn dismiss(&self) {
        self.reach.others.dismiss();
    }

    /// Returns whether one of the hosts has gone.
    pub fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Measures a point ([`Reach::measure`]).
    ///
    /// # Errors
    ///
    /// A host is gone ([`Gone`]), or the measurement failed.
    pub fn measure(&self, layout: Layout, parameters: &Parameters) -> Result<PointResult, Failure> {
        let result = self.reach.measure(layout, parameters);
        if result.as_ref().is_err_and(|error| error.is::<Gone>()) {
            self.is_lost.set(true);
        }
        result
    }
}

/// Returns the error about a host that did not introduce itself. After a timeout, the error suggests `doorbell doctor`:
/// if the path drops long packets, TCP retransmits them without an error.
pub fn not_met(name: &str, error: &SessionError) -> Failure {
    let hint = match error {
        SessionError::Control(error) if error.kind() == io::ErrorKind::TimedOut => {
            "; run `doorbell doctor` to find out whether the path drops long packets"
        }
        _ => "",
    };
    format!("{}{hint}", of_host(name, error)).into()
}

/// Adds the name of the host to an error that does not contain this name.
pub fn of_host(name: &str, error: &impl Display) -> String {
    let error = error.to_string();
    // A name without a port may be a part of another word in the error, so add it in any case.
    if name.contains(':') && error.contains(name) { error } else { format!("{name}: {error}") }
}

/// Checks that the hosts are different processes. A comparison of addresses is not enough, since a host may have
/// several names and addresses.
fn each_once(names: &[String], met: &[Introduced]) -> Result<(), Usage> {
    let mut known: Vec<(u64, &String)> = Vec::new();
    for (name, introduced) in names.iter().zip(met) {
        let Some(process) = introduced.process else { continue };
        if let Some((_, other)) = known.iter().find(|(known, _)| *known == process) {
            return Err(Usage(same_host(name, other)));
        }
        known.push((process, name));
    }
    Ok(())
}

/// Returns the error about two names of one process.
pub fn same_host(name: &str, other: &str) -> String {
    format!("{other} and {name} are the same host: name each host once")
}

/// Returns the lowest queue pair limit among the device of this machine and the devices of hosts that report a limit.
/// The name is that of the host with the lowest limit.
pub fn fewest<'a>(
    own: &DeviceAttributes,
    others: impl IntoIterator<Item = (Option<usize>, &'a String)>,
) -> (usize, String) {
    let known = others.into_iter().filter_map(|(pairs, name)| Some((pairs?, name.clone())));
    std::iter::once((own.limits.max_qps, HERE.to_owned()))
        .chain(known)
        .min_by_key(|(pairs, _)| *pairs)
        .unwrap_or_default()
}

/// Returns whether all hosts have software RNICs.
pub fn are_soft<'a>(mut hosts: impl Iterator<Item = &'a Environment>) -> bool {
    hosts.all(|host| host.provider == soft::PROVIDER)
}

/// Checks that this machine and another one have the same release, UDP port and path MTU.
///
/// # Errors
///
/// The machines differ in one of them.
pub fn fits(own: &Environment, other: &Environment, name: &str) -> Result<(), Failure> {
    if own.doorbell != other.doorbell {
        let (theirs, ours) = (&other.doorbell, &own.doorbell);
        return Err(format!("{name} has release {theirs} of Doorbell, this machine {ours}: use the same one").into());
    }
    if own.udp_port != other.udp_port {
        let (theirs, ours) = (other.udp_port, own.udp_port);
        return Err(format!(
            "the device here is at UDP port {ours}, that of {name} at {theirs}: give both the same --udp-port"
        )
        .into());
    }
    if own.active_mtu != other.active_mtu {
        let (theirs, ours) = (other.active_mtu, own.active_mtu);
        return Err(format!(
            "the device of {name} has a path MTU of {theirs} B, the device here one of {ours} B: give both interfaces the \
             same MTU"
        )
        .into());
    }
    Ok(())
}

/// Checks that the path between this machine and another one carries packets of full length.
///
/// # Errors
///
/// The path does not carry them, or could not be examined.
pub fn passes(
    device: &Device,
    theirs: usize,
    introduction: &Introduction,
    reach: impl Fn() -> Result<TcpStream, Failure>,
    name: &str,
) -> Result<(), Failure> {
    let finding = path::probe(device, theirs, introduction, reach)?;
    if finding.severity == Severity::Spoils {
        return Err(format!("{name}: {}: {}", finding.what, finding.remedy).into());
    }
    Ok(())
}

/// Maximum number of measurements of a point whose hosts have no common measured time.
const MAX_ATTEMPTS: usize = 5;

/// Measures until the hosts have a common measured time, at most [`MAX_ATTEMPTS`] times. On a busy machine, a process
/// may get its first CPU time after another process has ended, and the next attempt usually succeeds.
fn repeat_if_apart<T>(
    mut measure: impl FnMut() -> Result<Result<T, HostError>, Failure>,
) -> Result<Result<T, HostError>, Failure> {
    for _ in 1..MAX_ATTEMPTS {
        match measure()? {
            Err(HostError { error: SessionError::Apart(_), .. }) => {}
            result => return Ok(result),
        }
    }
    measure()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_a_common_time_measure_again() {
        let apart = || HostError { host: "node7".to_owned(), error: SessionError::Apart(0.001) };
        let attempts = Cell::new(0);
        let measured_after = |failures: usize, error: fn() -> HostError| {
            attempts.set(0);
            repeat_if_apart(|| {
                attempts.set(attempts.get() + 1);
                Ok(if attempts.get() > failures { Ok(attempts.get()) } else { Err(error()) })
            })
            .unwrap()
        };
        assert!(matches!(measured_after(2, apart), Ok(3)));
        assert!(matches!(measured_after(MAX_ATTEMPTS - 1, apart), Ok(MAX_ATTEMPTS)));
        let error = measured_after(MAX_ATTEMPTS, apart).unwrap_err();
        assert!(matches!(error.error, SessionError::Apart(_)));
        // Another failure is returned at once.
        let refused = || HostError { host: "node7".to_owned(), error: SessionError::Peer("no room".to_owned()) };
        assert!(measured_after(1, refused).is_err());
        assert_eq!(attempts.get(), 1);
    }

    #[test]
    fn an_error_names_its_host_once() {
        let connect = "cannot connect to node7:18515: Connection refused".to_owned();
        assert_eq!(of_host("node7:18515", &connect), connect);
        assert_eq!(of_host("one", &"none came"), "one: none came");
        let silence = io::Error::new(io::ErrorKind::TimedOut, "it does not answer");
        let said = not_met("node7:18515", &SessionError::Control(silence)).to_string();
        assert!(said.starts_with("node7:18515: the peer is gone: it does not answer; run `doorbell doctor`"), "{said}");
    }
}
