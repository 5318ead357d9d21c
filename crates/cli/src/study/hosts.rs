//! A study on several hosts: this machine, which coordinates, and others.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};

use doorbell_study::doctor::{Severity, path};
use doorbell_study::environment::Environment;
use doorbell_study::experiment::Experiment;
use doorbell_study::layout::Layout;
use doorbell_study::parameters::Parameters;
use doorbell_study::pinning::{Pinning, Place};
use doorbell_study::record::PointResult;
use doorbell_study::session::{self, Client, Dealt, HostError, Introduced, Introduction, Terms, Token, measure_on};
use doorbell_verbs::Device;

use super::{MEMORY_MIB, Study, THERE, open};
use crate::control;
use crate::device::Chosen;
use crate::output::note;
use crate::{Failure, Usage};

/// What this machine is called among the hosts of a study.
const HERE: &str = "this machine";

/// The other hosts of a study.
pub(super) trait Others {
    /// Their names, for people.
    fn names(&self) -> Vec<String>;

    /// A control connection to one of them, which serves whoever is at this end.
    fn reach(&self, number: usize) -> Result<TcpStream, Failure>;

    /// What they want to be shown.
    fn token(&self) -> Option<Token>;

    /// Tells them that the study is over.
    fn dismiss(&self) {}
}

/// Hosts on which somebody has started `doorbell study --listen`.
pub(super) struct Listening {
    addresses: Vec<String>,
    token: Option<Token>,
}

impl Listening {
    /// Those at these addresses, each of which is to be another one.
    pub(super) fn new(addresses: Vec<String>, token: Option<Token>) -> Result<Self, Usage> {
        let mut found: Vec<(&str, Vec<SocketAddr>)> = Vec::new();
        for address in &addresses {
            let own: Vec<_> = address.to_socket_addrs().into_iter().flatten().collect();
            if let Some((other, _)) = found.iter().find(|(_, others)| own.iter().any(|own| others.contains(own))) {
                return Err(Usage(format!("{address} and {other} are the same host: name each once")));
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
        control::connect(&self.addresses[number], THERE)
    }

    fn token(&self) -> Option<Token> {
        self.token.clone()
    }
}

/// A host cannot be reached, or has gone: nothing more can be measured.
#[derive(Debug)]
pub(super) struct Gone(String);

impl std::fmt::Display for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Gone {}

/// This machine and all others of a study.
pub(super) struct Hosts {
    chosen: Chosen,
    introduction: Introduction,
    others: Box<dyn Others>,
    /// Of this machine, and behind it those of the others.
    names: Vec<String>,
    pub(super) environment: Environment,
    /// The fewest queue pairs of a device, and whose it is.
    queue_pairs: Option<(usize, String)>,
    /// What this machine's own end may pin, of which a point takes its share.
    pinning: Pinning,
    /// The places of all of them among those that are one machine.
    places: Vec<Place>,
    /// Where the others reach this machine's device; `None` if all are on this machine.
    toward: Option<IpAddr>,
    /// Has one of them been seen to be gone? Then the study ends.
    is_lost: Cell<bool>,
}

impl Hosts {
    /// Makes all hosts known to each other, and finds out whether they can measure together.
    pub(super) fn meet(study: &Study, chosen: Chosen, others: Box<dyn Others>) -> Result<Self, Failure> {
        let introduction = Introduction { token: others.token(), ..Introduction::default() };
        let mut names = vec![HERE.to_owned()];
        names.extend(others.names());
        let (mut met, mut toward) = (Vec::new(), None);
        for (number, name) in names[1..].iter().enumerate() {
            let stream = others.reach(number)?;
            toward = toward.or(control::address_toward(&stream));
            let introduced = Client::meet(stream, introduction.clone());
            met.push(introduced.map_err(|error| format!("{name}: {error}"))?);
        }
        let device = open(study, &chosen, toward)?;
        let attributes = device.attributes();
        let pinning = study.cpus.pinning(&device)?;
        let own = Environment { pinning: Some(pinning.clone()), ..Environment::of(&attributes) };
        let mut environments = vec![&own];
        environments.extend(met.iter().map(|met| &met.environment));
        let places = Place::among(&environments);
        let share = |environment: &Environment, place: Place| Environment {
            pinning: environment.pinning.as_ref().map(|pinning| pinning.share(place)),
            peer: None,
            hosts: Vec::new(),
            ..environment.clone()
        };
        let mut shared: Vec<_> = environments.iter().zip(&places).map(|(all, place)| share(all, *place)).collect();
        let note_pinning = |environment: &Environment| {
            environment.pinning.as_ref().map_or_else(String::new, |pinning| format!("; {pinning}"))
        };
        let mut queue_pairs = Some((attributes.limits.max_qps, HERE.to_owned()));
        for ((number, name), Introduced { environment, max_qps, .. }) in names[1..].iter().enumerate().zip(&met) {
            fits(&own, environment, name)?;
            if let (Some((least, _)), Some(theirs)) = (&queue_pairs, *max_qps)
                && theirs < *least
            {
                queue_pairs = Some((theirs, name.clone()));
            }
            passes(&device, &introduction, || others.reach(number), name)?;
            let Environment { machine, cpu, device, .. } = environment;
            let pinned = note_pinning(&shared[number + 1]);
            note!("host {}: {} ({name}), {cpu}, device {device}{pinned}", number + 1, machine.host);
        }
        note!("host 0: {HERE}{}", note_pinning(&shared[0]));
        let hosts = shared.split_off(1);
        let environment = Environment { hosts, ..shared.swap_remove(0) };
        let is_lost = Cell::new(false);
        Ok(Self { chosen, introduction, others, names, environment, queue_pairs, pinning, places, toward, is_lost })
    }

    /// Can all of this be measured on these hosts?
    pub(super) fn check(&self, experiments: &[Experiment]) -> Result<(), Usage> {
        let Some((most, whose)) = &self.queue_pairs else { return Ok(()) };
        for (experiment, point) in experiments.iter().flat_map(|one| one.points.iter().map(move |point| (one, point))) {
            let dealt = Dealt::new(experiment.layout, point.parameters.connections, self.names.len());
            let needed = dealt.shares().iter().map(|share| share.lanes.len()).max().unwrap_or(0);
            if needed > *most {
                return Err(Usage(format!(
                    "{} needs {needed} queue pairs of a host, the device of {whose} has {most}: leave it out",
                    experiment.name
                )));
            }
        }
        Ok(())
    }

    /// Tells the others that the study is over.
    pub(super) fn dismiss(&self) {
        self.others.dismiss();
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Measures a point once, with a fresh device on each host that has a part in it.
    pub(super) fn measure(
        &self,
        study: &Study,
        layout: Layout,
        parameters: &Parameters,
    ) -> Result<PointResult, Failure> {
        if parameters.far.is_some() {
            return Err("points about shared memory are measured on this machine alone: leave out the hosts".into());
        }
        let result = self.measure_on(study, layout, parameters);
        if result.as_ref().is_err_and(|error| error.is::<Gone>()) {
            self.is_lost.set(true);
        }
        result
    }

    fn measure_on(&self, study: &Study, layout: Layout, parameters: &Parameters) -> Result<PointResult, Failure> {
        let bytes = *parameters.sizes.first().ok_or("a point has one size")?;
        let dealt = Dealt::new(layout, parameters.connections, self.names.len());
        let mut streams = Vec::new();
        let mut own = None;
        for share in dealt.shares() {
            let stream = match share.host.checked_sub(1) {
                Some(number) => self.others.reach(number).map_err(|error| Gone(error.to_string()))?,
                None => {
                    let (stream, end) = self.here(study)?;
                    own = Some(end);
                    stream
                }
            };
            streams.push((self.names[share.host].clone(), stream, self.places[share.host]));
        }
        let result = measure_on(streams, &self.introduction, parameters, bytes, &dealt);
        if let Some(own) = own {
            // What it failed of, the coordinator has heard.
            let _ = own.join();
        }
        result.map_err(|error: HostError| if error.is_gone() { Gone(error.to_string()).into() } else { error.into() })
    }

    /// This machine's own end of a point: a thread, which the coordinator reaches as it reaches other hosts.
    fn here(
        &self,
        study: &Study,
    ) -> Result<(TcpStream, std::thread::JoinHandle<Result<(), session::SessionError>>), Failure> {
        let device = open(study, &self.chosen, self.toward)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let stream = TcpStream::connect(listener.local_addr()?)?;
        let (accepted, from) = listener.accept()?;
        if from != stream.local_addr()? {
            return Err(format!("{from} connected to a port that only this process was to know").into());
        }
        let terms = Terms { pinning: self.pinning.clone(), ..Terms::open(MEMORY_MIB << 20) };
        Ok((stream, std::thread::spawn(move || session::serve(&device, accepted, &terms))))
    }
}

/// Do two machines measure the same?
pub(super) fn fits(own: &Environment, other: &Environment, name: &str) -> Result<(), Failure> {
    if own.doorbell != other.doorbell {
        let (theirs, ours) = (&other.doorbell, &own.doorbell);
        return Err(format!("{name} has release {theirs} of Doorbell, this machine {ours}: use the same").into());
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

/// Do packets of full length pass between this machine and another?
fn passes(
    device: &Device,
    introduction: &Introduction,
    reach: impl Fn() -> Result<TcpStream, Failure>,
    name: &str,
) -> Result<(), Failure> {
    let finding = path::probe(device, introduction, reach)?;
    if finding.severity == Severity::Spoils {
        return Err(format!("{name}: {}: {}", finding.what, finding.remedy).into());
    }
    Ok(())
}
