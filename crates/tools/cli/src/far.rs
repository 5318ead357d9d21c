//! `doorbell far`: workloads on a store in passive memory.

pub(crate) mod arguments;
mod client;
mod memory;
mod middlebox;
mod service;
mod table;
mod verify;

use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, Subcommand};
use doorbell_farmem::assembly::ClientParty;
use doorbell_farmem::workload::{self, Report, Tally, most_clients};
use doorbell_farmem::{HostCache, Strategy};
use doorbell_machine::pinning::Pinning;
use doorbell_record::{PointResult, StorePoint};
use doorbell_sim::far::{Far as Simulated, run as simulate};
use doorbell_study::executor::{Idle, block_on};
use doorbell_study::far::store_result;
use doorbell_verbs::LinkCounters;
use doorbell_verbs::soft::{LinkChoice, SoftOptions};

use crate::device::{Chosen, DeviceChoice, UdpPort};
use crate::failure::{Failure, Usage};
use crate::output::{line, note};
use crate::sim::arguments::Simulated as Testbed;
use arguments::{OtherBox, Workload};
use service::{Memories, Store};
use table::Row;

const EXAMPLES: &str = "\
Examples:
  doorbell far run --testbed connectx5-100g-far --clients 64,128
  doorbell far run --testbed connectx5-100g-far --strategy optimistic,backoff,combine,server,steered
  doorbell far run --mix b -D 2s                on this machine, with two clients per processor
  doorbell far verify --strategy lock --clients 4
  doorbell far verify --replicas 2 --kill-node primary -D 3s --client-time 500us
  doorbell far verify --strategy steered --kill-box --fault drop=0.01,seed=1";

/// Default number of clients in virtual time, and maximum default on a real machine.
const DEFAULT_CLIENTS: usize = 64;

#[derive(Subcommand)]
pub(crate) enum Far {
    /// Run a workload, in virtual time or on this machine, and print the cost of each operation
    ///
    /// Each CAS and each READ of a value is an attempt. An attempt succeeds if it finds the newest node of the key.
    #[command(after_help = EXAMPLES)]
    Run(Run),
    /// Run a workload with a process for each client, kill one of these processes, and check in the history that each
    /// key is a linearizable register
    Verify(verify::Verify),
    /// Client of a store in another process, controlled by that process over standard input and output
    #[command(hide = true)]
    Client(client::ClientProcess),
    /// Memory node of a store in another process, controlled by that process over standard input and output
    #[command(hide = true)]
    Memory(memory::MemoryProcess),
}

#[derive(Args)]
pub(crate) struct Run {
    /// Strategies for concurrent access of clients, separated by commas, which run one after the other
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', default_value = "optimistic",
          value_parser = arguments::strategy)]
    strategy: Vec<Strategy>,
    /// Number of clients, each a thread. Runs with several numbers, separated by commas, follow one another [default:
    /// 64 in virtual time; on this machine two per processor, and at most 64]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = arguments::clients)]
    clients: Vec<usize>,
    #[command(flatten)]
    workload: Workload,
    #[command(flatten)]
    simulated: Testbed,
    #[command(flatten)]
    other: OtherBox,
    #[command(flatten)]
    device: DeviceChoice,
    #[command(flatten)]
    udp: UdpPort,
    /// Link that a study has chosen for the packets of this run.
    #[arg(skip)]
    link: Option<LinkChoice>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(far: Far) -> Result<ExitCode, Failure> {
    match far {
        Far::Run(run) => run.run().map(|()| ExitCode::SUCCESS),
        Far::Verify(verify) => verify.run(),
        Far::Client(client) => client.run().map(|()| ExitCode::SUCCESS),
        Far::Memory(memory) => memory.run().map(|()| ExitCode::SUCCESS),
    }
}

/// Measures a point of a study on this machine. `pinning` pins the threads of this point.
pub(crate) fn measure_point(
    point: &StorePoint,
    (choice, chosen): (&DeviceChoice, &Chosen),
    (udp, link): (UdpPort, Option<LinkChoice>),
    seed: u64,
    pinning: &Pinning,
) -> Result<PointResult, Failure> {
    pinning.try_all()?;
    arguments::check_here(point.strategy, chosen, &OtherBox::default())?;
    let run = Run {
        strategy: vec![point.strategy],
        clients: vec![point.clients],
        workload: Workload::of(point, seed),
        simulated: Testbed::default(),
        other: OtherBox::default(),
        device: choice.clone(),
        udp,
        link,
        json: false,
    };
    let row = run.measure(chosen, point.strategy, point.clients, pinning)?;
    let mut result = store_result(point, &row.report, None);
    result.link.client = row.link_by_name();
    result.carried_by = result.carried().by();
    Ok(result)
}

impl Run {
    fn run(&self) -> Result<(), Failure> {
        for &strategy in &self.strategy {
            arguments::check_replicas(strategy, self.workload.replicas)?;
        }
        let testbed = self
            .simulated
            .read(&[("-d", self.device.name.is_some()), ("--through", self.other.addresses().is_some())])?;
        let chosen = match testbed {
            Some(_) => None,
            None => Some(self.device.choose(None)?),
        };
        if self.other.addresses().is_some() && self.clients.len().max(1) * self.strategy.len() > 1 {
            return Err(Usage(
                "--through must be given with one strategy and one number of clients, for one store".to_owned(),
            )
            .into());
        }
        let numbers = self.numbers_of_clients(chosen.as_ref())?;
        let mut rows = Vec::new();
        for &clients in &numbers {
            let load = self.workload.load(clients, testbed.is_some())?;
            if !self.json && rows.is_empty() {
                let place = match &testbed {
                    Some(testbed) => {
                        format!(
                            "simulated on {}; the same seed and program give the same numbers on any machine",
                            testbed.name
                        )
                    }
                    None => "measured here, all parts of the store in this process".to_owned(),
                };
                line(format_args!("{place}\n{}", self.workload.sentence(&load)))?;
            }
            for &strategy in &self.strategy {
                let row = match (&testbed, &chosen) {
                    (Some(testbed), _) => {
                        let (hosts, shortcut_delay_ns) = (self.workload.hosts, self.workload.shortcut_delay_ns());
                        let replicas = self.workload.replicas;
                        let far = Simulated { strategy, load, clients, hosts, replicas, ..Simulated::default() };
                        let far = Simulated { shortcut_delay_ns, ..far };
                        let run = simulate(testbed, &far, self.workload.seed)?;
                        let cpu = Some([run.memory_cpu, run.client_cpu]);
                        let digest = Some(run.summary.digest);
                        Row { strategy, clients, load, report: run.report, cpu, digest, link: None }
                    }
                    (None, Some(chosen)) => {
                        arguments::check_here(strategy, chosen, &self.other)?;
                        self.measure(chosen, strategy, clients, &Pinning::default())?
                    }
                    (None, None) => return Err(Usage("give a testbed (--testbed) or a device (-d)".to_owned()).into()),
                };
                if !self.json {
                    if rows.is_empty() {
                        table::print_head()?;
                    }
                    table::print_row(&row)?;
                }
                rows.push(row);
            }
        }
        if self.json {
            let name = testbed.as_ref().map(|testbed| testbed.name.as_str());
            line(serde_json::to_string_pretty(&table::as_json(name, &self.workload, &rows))?)?;
        } else {
            table::print_legend()?;
        }
        Ok(())
    }

    /// Returns the numbers of clients, each for a run. `chosen` is the device of a run on this machine.
    fn numbers_of_clients(&self, chosen: Option<&Chosen>) -> Result<Vec<usize>, Usage> {
        let Some(chosen) = chosen else {
            return Ok(if self.clients.is_empty() { vec![DEFAULT_CLIENTS] } else { self.clients.clone() });
        };
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let most = most_clients(cpus);
        let processors = format!("{cpus} processor{}", if cpus == 1 { "" } else { "s" });
        if self.clients.is_empty() {
            let picked = most.min(DEFAULT_CLIENTS);
            note!("{picked} clients, since they poll and this machine has {processors}; --testbed simulates more");
            return Ok(vec![picked]);
        }
        // A hardware RNIC repeats packets itself, so its queue pairs survive clients that wait for a processor.
        match self.clients.iter().find(|&&clients| clients > most) {
            Some(clients) if chosen.is_soft() => {
                let names: Vec<&str> = self.strategy.iter().map(|strategy| strategy.name()).collect();
                let command = format!("doorbell far run --strategy {}", names.join(","));
                Err(Usage(format!(
                    "--clients is {clients}, allowed is 1 to {most} here: clients poll, and this machine has \
                     {processors}. Run fewer clients by `{command} --clients {most}`, or simulate them by `{command} \
                     --testbed connectx5-100g-far --clients {clients}`"
                )))
            }
            _ => Ok(self.clients.clone()),
        }
    }

    /// Runs the workload on this machine, with a thread for the memory node, a thread for the metadata service, and a
    /// thread for each client. The clients of a host share a device and a cache.
    fn measure(&self, chosen: &Chosen, strategy: Strategy, clients: usize, pinning: &Pinning) -> Result<Row, Failure> {
        let load = self.workload.load(clients, false)?;
        let soft = || SoftOptions { port: self.udp.port, link: self.link, publish: false, ..SoftOptions::default() };
        let open = || chosen.open(soft);
        let memories = (0..self.workload.replicas).map(|_| open()).collect::<Result<_, _>>()?;
        let plan = self.workload.plan(strategy, &load, clients);
        let store = Store::start((Memories::Here(memories), open()?), plan, (None, self.other), pinning)?;
        let hosts = self.workload.hosts.min(clients);
        let devices: Vec<_> = (0..hosts).map(|_| open()).collect::<Result<_, _>>()?;
        let caches: Vec<_> = (0..hosts).map(|_| Arc::new(HostCache::new(4 * load.keys as usize))).collect();
        caches.iter().for_each(|cache| cache.fill(load.keys, load.value_bytes));
        note!("{clients} clients, {}", strategy.name());
        let path_mtu = devices[0].attributes().active_mtu;
        let options = self.workload.options(strategy, load.outstanding);
        let tallies: Vec<Result<Tally, String>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..clients)
                .map(|index| {
                    let (device, cache) = (&devices[index % hosts], &caches[index % hosts]);
                    let (options, store, seed) = (options.clone(), &store, self.workload.seed);
                    scope.spawn(move || -> Result<Tally, String> {
                        let _pinned = pinning.pin(index);
                        let sentence = |error: &dyn std::fmt::Display| error.to_string();
                        let number = index as u32 + 1;
                        let pd = device.create_pd().map_err(|error| sentence(&error))?;
                        let mut party =
                            ClientParty::new(&pd, &plan, number, options).map_err(|error| sentence(&error))?;
                        // The mailbox holds the connection with a middlebox, so it must outlive the client.
                        let mut mailbox = store.mailbox(number);
                        mailbox.admit(&mut party, device).map_err(|error| sentence(&error))?;
                        let mut client = party.connect(cache).map_err(|error| sentence(&error))?;
                        let idle = Idle::spin();
                        let tally = block_on(async {
                            let of = (number.into(), seed);
                            let tally = workload::drive(&mut client, device, &load, of, &idle, &mut ()).await;
                            workload::close(client, &idle).await;
                            tally
                        });
                        tally.map_err(|error| sentence(&error))
                    })
                })
                .collect();
            let mut tallies = Vec::new();
            for thread in threads {
                tallies.push(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            }
            tallies
        });
        let mut by_host: Vec<Vec<Tally>> = (0..hosts).map(|_| Vec::new()).collect();
        for (index, tally) in tallies.into_iter().enumerate() {
            by_host[index % hosts].push(tally.map_err(|why| format!("client {}: {why}", index + 1))?);
        }
        store.stop()?;
        let report = Report::new(&load, path_mtu, strategy == Strategy::Server, &by_host);
        let none = LinkCounters::default();
        let link = devices.iter().fold(none, |sum, device| sum.plus(&device.link_counters()));
        Ok(Row { strategy, clients, load, report, cpu: None, digest: None, link: Some(link) })
    }
}
