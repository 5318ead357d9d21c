//! State transitions of an RC queue pair from reset to ready to send (IBTA Vol 1, 10.3.1). All connections use these
//! transitions.

use doorbell_verbs::{Access, AddressVector, ModifyError, Qp, QpAttributes, QpState};

use crate::connection::error::ConnectError;
use crate::setup::EndpointDescription;

/// Settings of an RC connection.
#[derive(Clone, Copy, Debug)]
pub struct RcSettings {
    /// Exponent of the acknowledgement timeout: 4.096 us times two to this power.
    pub timeout: u8,
    /// Maximum number of acknowledgement timeouts in a row before the queue pair fails.
    pub retry_count: u8,
    /// Maximum number of RNR NAKs in a row before the queue pair fails. 7 means unlimited.
    pub rnr_retry: u8,
    /// Code of the minimum time that the peer waits after an RNR NAK before it retransmits.
    pub min_rnr_timer: u8,
}

/// Moves a queue pair from reset to the initial state, in which receives can be posted. `access` is the maximum access
/// of the peer: an operation of the peer must be allowed by `access` and by its region.
///
/// # Errors
///
/// The queue pair is not in the reset state, or the device rejects the transition.
pub fn initialise(qp: &Qp, access: Access) -> Result<(), ModifyError> {
    qp.modify(&QpAttributes {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(access),
        ..QpAttributes::default()
    })
}

/// Moves an initialised queue pair to ready to receive, and then to ready to send. `own` is the description of this
/// queue pair. The maximum number of outstanding READs and atomics is the limit of the device, in both directions.
///
/// # Errors
///
/// The two ends use different UDP ports, or the device rejects a value of the peer's description or of the settings.
pub fn connect(
    qp: &Qp,
    own: &EndpointDescription,
    peer: &EndpointDescription,
    settings: &RcSettings,
) -> Result<(), ConnectError> {
    if own.udp_port != peer.udp_port {
        let (own, peer) = (own.udp_port.into(), peer.udp_port.into());
        return Err(ConnectError::Mismatch { what: "the UDP port", own, peer });
    }
    let rd_atomic = u8::try_from(qp.pd().device().attributes().limits.max_rd_atomic).unwrap_or(u8::MAX);
    qp.modify(&QpAttributes {
        state: Some(QpState::ReadyToReceive),
        address: Some(AddressVector::to(peer.gid.to_canonical())),
        path_mtu: Some(own.path_mtu.min(peer.path_mtu)),
        dest_qpn: Some(peer.qpn),
        receive_psn: Some(peer.psn),
        max_dest_rd_atomic: Some(rd_atomic),
        min_rnr_timer: Some(settings.min_rnr_timer),
        ..QpAttributes::default()
    })?;
    qp.modify(&QpAttributes {
        state: Some(QpState::ReadyToSend),
        send_psn: Some(own.psn),
        timeout: Some(settings.timeout),
        retry_count: Some(settings.retry_count),
        rnr_retry: Some(settings.rnr_retry),
        max_rd_atomic: Some(rd_atomic),
        ..QpAttributes::default()
    })?;
    Ok(())
}
