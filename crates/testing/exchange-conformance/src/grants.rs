//! Cases for Direct-Write only: the buffers that a peer grants.

use doorbell_exchange::setup::EndpointDescription;
use doorbell_exchange::{Config, ConnectError, Connector, DirectWrite};
use doorbell_verbs::Device;

use super::device;

/// Connects to a peer whose endpoint description `change` has modified.
fn connect(change: fn(&mut EndpointDescription)) -> Result<(), ConnectError> {
    let (a, b) = (device(), device());
    let end = |device: &Device| DirectWrite::default().endpoint(&device.create_pd().unwrap(), &Config::default(), None);
    let (a, b) = (end(&a)?, end(&b)?);
    let mut peer = DirectWrite::default().describe(&b);
    change(&mut peer);
    DirectWrite::default().connect(a, &peer).map(|_| ())
}

pub fn a_peer_with_too_small_buffers_is_rejected() {
    connect(|_| {}).unwrap();
    let changes: [fn(&mut EndpointDescription); 8] = [
        |peer| peer.max_message = u64::MAX,
        |peer| peer.max_message = u64::MAX - 8,
        |peer| peer.max_message = 1 << 40,
        |peer| peer.max_message = peer.regions[1].length / u64::from(peer.depth) - 7,
        |peer| peer.depth += 1,
        |peer| peer.regions[1].length -= 1,
        |peer| peer.regions[1].length = 0,
        |peer| peer.regions[0].length = 79,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let result = connect(change);
        assert!(matches!(result, Err(ConnectError::Setting { .. })), "change {number}: {result:?}");
    }
}
