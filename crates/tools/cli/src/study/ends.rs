//! A study between two ends: two processes on this machine, or this machine and another machine.

use std::cell::Cell;

use doorbell_campaign::hosts::{self, Listening, Reach};
use doorbell_campaign::{OwnDevice, THERE};
use doorbell_exchange::address::{address_toward, connect};
use doorbell_machine::pinning::{Pinning, ProcessPosition};
use doorbell_record::{Environment, FarPoint, Link, Parameters, PointResult};
use doorbell_sim::reproduce::SEED;
use doorbell_study::experiment::{Layout, Point};
use doorbell_study::session::{Client, Introduction};

use super::{Own, open_with};
use crate::bench::arguments::DeviceArguments;
use crate::bench::peer;
use crate::failure::Failure;
use crate::far::measure_point;
use crate::faults::FaultFiles;
use crate::output::{note, print_note};

/// The two ends of a study.
pub(super) struct Ends<'a> {
    own: &'a Own<'a>,
    /// Name of the other machine, and connections to that machine for points with more than two parties. `None` if both
    /// ends are on this machine.
    pub(super) other: Option<(String, Reach<'a>)>,
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

impl<'a> Ends<'a> {
    /// Opens the device of this end, and introduces this end to the other machine, if there is one.
    pub(super) fn meet(own: &'a Own<'a>, host: Option<String>) -> Result<Self, Failure> {
        let study = own.study;
        let introduction = study.meeting.introduction(false);
        let Some(host) = host else {
            let device = own.open(None)?;
            let pinning = study.cpus.pinning_of_both_ends(&device)?;
            note!("{pinning}");
            let pinnings = [0, 1].map(|number| pinning.share(ProcessPosition { number, of: 2 }));
            let attributes = device.attributes();
            let queue_pairs = hosts::fewest(&attributes, []);
            let environment = Environment { pinning: Some(pinning), ..own.environment(None, &attributes)? };
            return Ok(Self {
                own,
                other: None,
                queue_pairs,
                environment,
                pinnings,
                introduction,
                is_lost: Cell::default(),
            });
        };
        let stream = connect(&host, THERE)?;
        let toward = address_toward(&stream);
        let device = own.open(toward)?;
        let pinning = own.pinning(&device)?;
        let introduced = Client::meet(stream, introduction.clone()).map_err(|error| hosts::not_met(&host, &error))?;
        let attributes = device.attributes();
        let (here_all, other) = (own.environment(toward, &attributes)?, introduced.environment);
        hosts::fits(&here_all, &other, &host)?;
        hosts::passes(&device, other.active_mtu, &introduction, || Ok(connect(&host, THERE)?), &host)?;
        let queue_pairs = hosts::fewest(&attributes, [(introduced.max_qps, &host)]);
        let [here, there] =
            <[ProcessPosition; 2]>::try_from(ProcessPosition::among(&[&here_all.machine, &other.machine]))
                .unwrap_or_default();
        let pinnings =
            [pinning.share(here), other.pinning.as_ref().map(|there_all| there_all.share(there)).unwrap_or_default()];
        let [here_all, other] = [(here_all, &pinnings[0]), (other, &pinnings[1])]
            .map(|(environment, pinning)| Environment { pinning: Some(pinning.clone()), peer: None, ..environment });
        note!("this machine: {}", pinnings[0]);
        note!("with {} ({}), device {}; {}", other.machine.host, other.cpu, other.device, pinnings[1]);
        let listening = Listening::new(vec![host.clone()], study.meeting.token())?;
        let reach = Reach::new(own, Box::new(listening), toward, print_note).pinned(pinning, vec![here, there]);
        let environment = Environment { peer: Some(Box::new(other)), ..here_all };
        let introduction = Introduction { place: there, ..introduction };
        Ok(Self {
            own,
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
    fn measure_far(&self, far: &FarPoint, parameters: &Parameters) -> Result<PointResult, Failure> {
        if let Some((_, reach)) = &self.other {
            return reach.measure(Layout::TwoEnds, parameters);
        }
        let Own { study, chosen, .. } = self.own;
        let open = || self.own.open(None);
        let pinning = self.environment.pinning.as_ref().map(|all| parameters.pinning(all)).unwrap_or_default();
        match far {
            FarPoint::Store(point) => {
                measure_point(point, (&study.device, chosen), (study.udp, study.link), SEED, &pinning)
            }
            _ => Ok(doorbell_study::far::measure([&open()?, &open()?], far, &pinning)?),
        }
    }

    /// Measures a point once, between two processes that each open a new device.
    pub(super) fn measure(&self, point: &Point) -> Result<PointResult, Failure> {
        let parameters = point.parameters.clone();
        if let Some(far) = &parameters.far {
            return self.measure_far(far, &parameters);
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
            let stream = connect(host, THERE).inspect_err(|_| self.is_lost.set(true))?;
            let device = self.own.open(address_toward(&stream))?;
            let client = Client::introduced(&device, stream, self.introduction.clone(), parameters);
            return client.map_err(Failure::from).and_then(|(client, ..)| measure(client)).map_err(|error| {
                // If the other machine is unreachable, end the study instead of going on with the next point.
                self.is_lost.set(connect(host, THERE).is_err());
                hosts::of_host(host, &error).into()
            });
        }
        let Own { study, chosen, journal } = self.own;
        let memory_mib = parameters.memory_bytes >> 20;
        let link = parameters.link.map(Link::choice).or(study.link);
        let device = open_with(self.own, None, link)?;
        let arguments = DeviceArguments {
            choice: study.device.clone(),
            bind: None,
            udp: study.udp,
            receive_buffer: None,
            pcap: None,
            fault: study.faults().cloned(),
            fault_files: FaultFiles { fault_plan: None, fault_journal: journal.clone() },
            ack: study.ack,
            link,
            first_psn: None,
        };
        let (stream, second) = peer::spawn(parameters.kind, &arguments, chosen, memory_mib, other)?;
        let result = Client::new(&device, stream, parameters).map_err(Failure::from).and_then(measure);
        second.finish(result.is_ok())?;
        result
    }
}
