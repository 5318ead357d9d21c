//! Service for clients of other machines.

use std::collections::HashSet;
use std::net::IpAddr;

use doorbell_exchange::address::address_toward;
use doorbell_exchange::admission::{Client, Clients, Note, Notes};
use doorbell_verbs::Device;

use doorbell_study::Failure;
use doorbell_study::session::{AdmittedClient, SessionError, SessionOpening, Terms};

/// Serves one client after another until the process ends. `open` opens the device for a client. The argument of `open`
/// is the address at which the client reaches this machine, if the client is on another machine. `note` shows clients
/// and failures.
pub fn serve_each(
    mut clients: Clients<SessionOpening>,
    terms: &Terms,
    open: impl Fn(Option<IpAddr>) -> Result<Device, Failure>,
    note: Note,
) -> ! {
    let mut known = HashSet::new();
    let mut failures = Notes::new(note);
    loop {
        let Client { stream, from, opening, .. } = clients.wait();
        // A study connects again for each point, so note the address of a client only once.
        if known.len() < 1024 && known.insert(from.ip()) {
            note(&format!("serving {}", from.ip()));
        }
        let toward = address_toward(&stream);
        let served = AdmittedClient::new(stream, opening).and_then(|client| match open(toward) {
            Ok(device) => client.serve(device, terms),
            Err(error) => {
                failures.say(&format!("{from}: {error}"));
                client.refuse(&error.to_string());
                Ok(())
            }
        });
        match served {
            Ok(()) => {}
            // A client may end its measurement at any time.
            Err(SessionError::Control(error)) => {
                failures.say(&format!("{from} went before its measurement ended: {error}"));
            }
            Err(error) => failures.say(&format!("{from}: {error}")),
        }
    }
}
