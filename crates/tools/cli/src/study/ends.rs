//! A study between two ends: two processes on this machine, or this machine and another machine.

use std::cell::Cell;

use doorbell_sim::reproduce::SEED;
use doorbell_study::environment::Environment;
use doorbell_study::experiment::Point;
use doorbell_study::far::FarPoint;
use doorbell_study::layout::Layout;
use doorbell_study::link::Link;
use doorbell_study::parameters::Parameters;
use doorbell_study::pinning::{Pinning, ProcessPosition};
use doorbell_study::record::PointResult;
use doorbell_study::session::{Client, Introduction};

use super::hosts::{self, Listening, Reach};
use super::{Study, THERE, environment_of, open, open_with};
use crate::bench::arguments::DeviceArguments;
use crate::bench::peer;
use crate::control;
use crate::device::Chosen;
use crate::failure::Failure;
use crate::far::measure_point;
use crate::output::note;

/// The two ends of a study.
pub(super) struct Ends {
    chosen: Chosen,
    /// Name of the other machine, and connections to that machine for points with more than two parties. `None` if both
    /// ends are on this machine.
    pub(super) other: Option<(String, Reach)>,
    /// Lowest queue pair limit of the devices, and the name of the machine with that device.
    pub(super) queue_pairs: (usize, String),
    pub(super) environment: Environment,
    /// Pinning of this end, then of the other end.
    pinnings: [Pinning; 2],
    /// Introduction of this end to the other machine.
    introduction: Introduction,
    /// Whether the other machine has gone, so that the study ends.
    is_lost: Cell<bool>,
}

impl Ends {
    /// Opens the device of this end, and introduces this end to the other machine, if there is one.
    pub(super) fn meet(study: &Study, chosen: Chosen, host: Option<String>) -> Result<Self, Failure> {
        let introduction = study.meeting.introduction(false);
        let Some(host) = host else {
            let device = open(study, &chosen, None)?;
            let pinning = study.cpus.pinning_of_both_ends(&device)?;
            note!("{pinning}");
            let pinnings = [0, 1].map(|number| pinning.share(ProcessPosition { number, of: 2 }));
            let attributes = device.attributes();
            let queue_pairs = hosts::fewest(&attributes, []);
            let environment = Environment { pinning: Some(pinning), ..environment_of(study, None, &attributes)? };
            return Ok(Self {
                chosen,
                other: None,
                queue_pairs,
                environment,
                pinnings,
                introduction,
                is_lost: Cell::default(),
            });
        };
        let stream = control::connect(&host, THERE)?;
        let toward = control::address_toward(&stream);
        let device = open(study, &chosen, toward)?;
        let pinning = study.cpus.pinning(&device)?;
        let introduced = Client::meet(stream, introduction.clone()).map_err(|error| hosts::not_met(&host, &error))?;
        let attributes = device.attributes();
        let (own, other) = (environment_of(study, toward, &attributes)?, introduced.environment);
        hosts::fits(&own, &other, &host)?;
        hosts::passes(&device, other.active_mtu, &introduction, || control::connect(&host, THERE), &host)?;
        let queue_pairs = hosts::fewest(&attributes, [(introduced.max_qps, &host)]);
        let [here, there] =
            <[ProcessPosition; 2]>::try_from(ProcessPosition::among(&[&own, &other])).unwrap_or_default();
        let pinnings =
            [pinning.share(here), other.pinning.as_ref().map(|there_all| there_all.share(there)).unwrap_or_default()];
        let [own, other] = [(own, &pinnings[0]), (other, &pinnings[1])].map(|(environment, pinning)| Environment {
            pinning: Some(pinning.clone()),
            peer: None,
            ..environment
        });
        note!("this machine: {}", pinnings[0]);
        note!("with {} ({}), device {}; {}", other.machine.host, other.cpu, other.device, pinnings[1]);
        let listening = Listening::new(vec![host.clone()], study.meeting.token())?;
        let reach = Reach::new(chosen.clone(), Box::new(listening), toward).pinned(pinning, vec![here, there]);
        let environment = Environment { peer: Some(Box::new(other)), ..own };
        let introduction = Introduction { place: there, ..introduction };
        Ok(Self {
            chosen,
            other: Some((host, reach)),
            queue_pairs,
            environment,
            pinnings,
            introduction,
            is_lost: Cell::default(),
        })
    }

    /// Returns whether the other machine has gone.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.get()
    }

    /// Measures a point about shared memory once. All parties of the point are in this process or distributed over both
    /// machines.
    fn measure_far(&self, study: &Study, far: &FarPoint, parameters: &Parameters) -> Result<PointResult, Failure> {
        if let Some((_, reach)) = &self.other {
            return reach.measure(study, Layout::TwoEnds, parameters);
        }
        let open = || open(study, &self.chosen, None);
        let pinning = self.environment.pinning.as_ref().map(|all| all.of_point(parameters)).unwrap_or_default();
        match far {
            FarPoint::Store(point) => {
                measure_point(point, (&study.device, &self.chosen), (study.udp, study.link), SEED, &pinning)
            }
            _ => Ok(doorbell_study::far::measure([&open()?, &open()?], far, &pinning)?),
        }
    }

    /// Measures a point once, between two processes that each open a new device.
    pub(super) fn measure(&self, study: &Study, point: &Point) -> Result<PointResult, Failure> {
        let parameters = point.parameters.clone();
        if let Some(far) = &parameters.far {
            return self.measure_far(study, far, &parameters);
        }
        let bytes = *parameters.sizes.first().ok_or("a point has one size")?;
        let [own, other] = &self.pinnings;
        let measure = |client: Client| -> Result<PointResult, Failure> {
            let mut client = client.pinned(own.clone());
            let result = client.measure(bytes, |_| {})?;
            client.finish()?;
            Ok(result)
        };
        if let Some((host, _)) = &self.other {
            let stream = control::connect(host, THERE).inspect_err(|_| self.is_lost.set(true))?;
            let device = open(study, &self.chosen, control::address_toward(&stream))?;
            let client = Client::introduced(&device, stream, self.introduction.clone(), parameters);
            return client.map_err(Failure::from).and_then(|(client, ..)| measure(client)).map_err(|error| {
                // If the other machine is unreachable, end the study instead of going on with the next point.
                self.is_lost.set(control::connect(host, THERE).is_err());
                hosts::of_host(host, &error).into()
            });
        }
        let memory_mib = parameters.memory_bytes >> 20;
        let link = parameters.link.map(Link::choice).or(study.link);
        let device = open_with(study, &self.chosen, None, link)?;
        let arguments = DeviceArguments {
            choice: study.device.clone(),
            bind: None,
            udp: study.udp,
            receive_buffer: None,
            pcap: None,
            fault: None,
            ack: study.ack,
            link,
        };
        let (stream, second) = peer::spawn(parameters.kind, &arguments, &self.chosen, memory_mib, other)?;
        let result = Client::new(&device, stream, parameters).map_err(Failure::from).and_then(measure);
        second.finish(result.is_ok())?;
        result
    }
}
