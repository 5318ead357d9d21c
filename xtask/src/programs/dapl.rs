//! uDAPL, an interface of the DAT Collaborative: Debian's dapltest, over connections of `rdma_cm`.

use std::fs;
use std::process::Command;

use super::transfers::{SOME_TRANSFERS, Way, each_way, expect};
use super::{PATIENCE, on_doorbell, start};
use crate::test::StepEnd;
use crate::{peers, place};

/// Name of the interface adapter in the file of [`ADAPTERS`].
const ADAPTER: &str = "doorbell";

/// Contents of `dat.conf`: the provider over `rdma_cm`, on the addresses of loopback.
const ADAPTERS: &str = "doorbell u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"lo 0\" \"\"\n";

/// Operations of the client and the server in each iteration: messages, WRITEs and READs in both directions.
const OPERATIONS: &str = "client SR 65536 server SR 65536 client RW 65536 server RR 65536 client RR 65536 \
                          server RW 65536 client SR 256 server SR 256";

/// Options of `doorbell run` that lose packets, except acknowledgements. Both ends disconnect after the last completion
/// of their own. If the other end then loses its acknowledgement, its message fails, on an RNIC too.
const LOSS: &[&str] = &["--fault", "seed=3;drop opcode=request share=0.01;drop opcode=read-response share=0.01"];

/// Line of a client that has seen the death of its server.
const FAILED: &str = "Test Error: ";

/// Line of a server after a test.
const SERVED: &str = "Transaction Test Finished";

/// Text of an end that has found wrong bytes.
const WRONG: &str = "Validation Error";

/// Runs dapltest. Its server has a fixed port, so the step needs a network of its own.
pub(crate) fn all() -> StepEnd {
    if !peers::is_root() {
        return StepEnd::LeftOut("dapltest has a fixed port, and only root can create a network for it".to_owned());
    }
    peers::install_for_dapl().and_then(|()| each_way("dapltest", pair)).into()
}

/// Runs server and client. The client asks both ends to compare all bytes (`-V`).
fn pair(way: Way) -> Result<(), String> {
    let adapters = place::own_file("dat.conf");
    fs::write(&adapters, ADAPTERS).map_err(|error| format!("{}: {error}", adapters.display()))?;
    // Without line buffering, the lines would stay in the client's buffer.
    let options = if way == Way::Loss { LOSS } else { way.options() };
    let dapltest = |options: &[&str], words: &[&str]| -> Command {
        let mut own = on_doorbell(options, &[&["stdbuf", "-oL", "dapltest"][..], words].concat());
        own.env("DAT_OVERRIDE", &adapters);
        own
    };
    let iterations = if way == Way::Killed { "100000" } else { "200" };
    let fixed = ["-T", "T", "-s", "127.0.0.1", "-D", ADAPTER, "-t", "1", "-w", "1", "-V", "-i", iterations];
    let client: Vec<&str> = fixed.into_iter().chain(OPERATIONS.split(' ')).collect();
    let mut server = start(dapltest(options, &["-T", "S", "-D", ADAPTER]))?;
    server.wait_until(|server| server.said().contains("Service Point Ready") || server.has_ended())?;
    let mut client = start(dapltest(options, &client))?;
    if way == Way::Killed {
        client.wait_until(|client| client.said().contains("Starting Test") || client.has_ended())?;
        std::thread::sleep(SOME_TRANSFERS);
        drop(server); // kills the process
        return expect(client.ended()?, FAILED).map(drop);
    }
    let said = expect(client.finish(PATIENCE)?, "Total RDMA Write")?;
    server.wait_until(|server| server.said().contains(SERVED) || server.has_ended())?;
    // A rule that meets no packet would fail the client that ends the server, as it receives only few.
    start(dapltest(&[], &["-T", "Q", "-s", "127.0.0.1", "-D", ADAPTER]))?.finish(PATIENCE)?;
    let served = server.finish(PATIENCE)?;
    // The status of an end that has found wrong bytes is 0.
    for said in [said, served] {
        if said.contains(FAILED) || said.contains(WRONG) {
            return Err(said);
        }
    }
    Ok(())
}
