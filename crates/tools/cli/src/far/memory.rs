//! A memory node in a process of its own, so that a test can kill it. The store's process and the memory node exchange
//! messages as lines ([`Mailbox`]).

use std::io::{self, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use clap::Args;
use doorbell_farmem::assembly::{Exchange, Mailbox, MemoryParty, Party};
use doorbell_sync::IgnorePoison;

use super::arguments::PartArguments;
use crate::failure::Failure;
use crate::output::{note, print_note};

#[derive(Args)]
pub(crate) struct MemoryProcess {
    /// Index of the memory node
    #[arg(long, value_name = "N")]
    index: u8,
    #[command(flatten)]
    part: PartArguments,
}

impl MemoryProcess {
    #[allow(clippy::disallowed_methods, reason = "a pipe to the process that started this process")]
    pub(super) fn run(&self) -> Result<(), Failure> {
        let (device, plan) = (self.part.open()?, self.part.plan(&self.part.load()?));
        let mut memory = MemoryParty::new(&device.create_pd()?, &plan, self.index)?;
        let mut mailbox = Mailbox::of_process(&plan, BufReader::new(io::stdin()), io::stdout(), |_| ())?;
        memory.serve(&mut mailbox, &device, print_note);
        Ok(())
    }
}

/// Handle of a memory node's process. Dropping the handle ends the process.
#[derive(Debug)]
pub(super) struct MemoryHandle(Mutex<Child>);

impl MemoryHandle {
    /// Starts memory node `index` of the store with this exchange.
    pub(super) fn start(command: &mut Command, index: u8, exchange: &Exchange) -> Result<Self, Failure> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("a memory node without an output")?);
        let input = child.stdin.take().ok_or("a memory node without an input")?;
        let own = Self(Mutex::new(child));
        let party = Party::Memory(index);
        let lines = exchange.connect(party, input)?;
        std::thread::Builder::new().name("memory".to_owned()).spawn(move || {
            if let Err(error) = lines.listen(output, |from| from == party, |_| ()) {
                note!("{party}: {error}");
            }
        })?;
        Ok(own)
    }

    /// Ends the process with SIGKILL.
    pub(super) fn kill(&self) -> io::Result<()> {
        let mut child = self.0.lock().ignore_poison();
        child.kill()?;
        child.wait().map(drop)
    }
}

impl Drop for MemoryHandle {
    fn drop(&mut self) {
        // The process may have ended already; these errors do not matter.
        let _ = self.kill();
    }
}
