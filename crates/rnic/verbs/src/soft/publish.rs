//! Publication of a software RNIC: its counters, and its port, which other processes of the same user order.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, Once};

use doorbell_counters::{PUBLISH_WITHIN_NS, PortReply, PortRequest, Published, PublishedPort, Publisher};
use doorbell_fabric::PortHandle;
use doorbell_sync::IgnorePoison;
use doorbell_verbs_core::{Counters, PortOrder, PortState};

use super::Soft;

/// Publishes the counters of the device. If publishing fails, the device works without it.
pub(super) fn publish(soft: &Soft, address: IpAddr, udp_port: u16) {
    static SAID: Once = Once::new();
    if !doorbell_counters::is_wanted() {
        return;
    }
    match Publisher::new(&Published { name: &soft.name, address, udp_port, counters: Counters::NAMES }) {
        Ok(publisher) => {
            let mut requests = publisher.port_requests();
            soft.rnic()
                .serve_port(Box::new(move |port: &PortHandle<'_>| requests.serve(|request| obey(port, request))));
            let engines = soft.engines.all();
            let published = Arc::new(Mutex::new((vec![Counters::default(); engines.len()], publisher)));
            for (index, engine) in engines.iter().enumerate() {
                let published = Arc::clone(&published);
                let observer = move |counters: &Counters| {
                    let mut published = published.lock().ignore_poison();
                    let (each, publisher) = &mut *published;
                    each[index] = *counters;
                    let sum = each.iter().fold(Counters::default(), |sum, counters| sum.plus(counters));
                    publisher.publish(&sum.values());
                };
                engine.observe(Box::new(observer), PUBLISH_WITHIN_NS);
            }
        }
        Err(error) => SAID.call_once(|| tracing::debug!(%error, "counters are not published")),
    }
}

/// Carries out a request of another process to the port.
fn obey(port: &PortHandle<'_>, request: PortRequest) -> PortReply {
    let order = match request {
        PortRequest::State => None,
        PortRequest::Down => Some(PortOrder::Down),
        PortRequest::Up => Some(PortOrder::Up),
        PortRequest::DeviceFatal => Some(PortOrder::DeviceFatal),
    };
    let was_refused = order.is_some_and(|order| port.order(order).is_err());
    let state = match port.state() {
        Ok(PortState::Active) => PublishedPort::Active,
        Ok(PortState::Down) => PublishedPort::Down,
        Err(_) => PublishedPort::Failed,
    };
    PortReply { state, was_refused }
}
