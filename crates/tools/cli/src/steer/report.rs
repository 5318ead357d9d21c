//! Final report of the box.

use std::io;
use std::time::Duration;

use doorbell_fabric::Link;
use doorbell_record::{Figure, link_by_name};
use doorbell_steer::Driver;
use doorbell_steer::service::{ClientCounters, Service, Settings};
use doorbell_study::far::order_figures;
use serde_json::{Map, Value, json};

use crate::output::line;

pub(super) fn print<L: Link>(
    driver: &Driver<L>,
    service: &Service,
    is_relay: bool,
    elapsed: Duration,
    json: bool,
) -> io::Result<()> {
    let ClientCounters { served, refused, attached } = service.counters();
    let Settings { address, udp_port, node, .. } = service.settings();
    let counters = driver.steer().counters();
    let own = driver.counters();
    let order = is_relay.then(|| driver.steer().order());
    let link = link_by_name(&driver.link().link_counters(), &doorbell_verbs::LinkCounters::default());
    if json {
        let counters: Map<String, Value> =
            counters.named().map(|(name, count)| (name.to_owned(), count.into())).collect();
        return line(format_args!(
            "{:#}",
            json!({
                "schema": "doorbell-steer/1",
                "address": address.to_string(),
                "udp_port": udp_port,
                "node": node,
                "seconds": elapsed.as_secs_f64(),
                "clients": { "served": served, "refused": refused, "connected": driver.steer().held().clients },
                "attached": attached,
                "counters": counters,
                "driver": {
                    "damaged": own.damaged,
                    "foreign_source": own.foreign_source,
                    "dropped": own.dropped,
                },
                "link": link,
                "order": order.map(|order| json!({
                    "answered": order.answered,
                    "repeated": order.repeated,
                    "answers": order.answers,
                    "in_order": order.in_order,
                    "largest_gap": order.largest_gap,
                    "gaps": order.gaps,
                    "same_address_out_of_order": order.late,
                })),
            })
        ));
    }
    let seconds = elapsed.as_secs_f64();
    line(format_args!("{address} in front of {node}: {served} clients served in {seconds:.1} s"))?;
    let more = [
        (refused, "clients refused"),
        (attached.saturating_sub(1), "times that the box connected to the memory node again"),
        (own.damaged, "packets with a wrong ICRC, or too short for an ICRC"),
        (own.foreign_source, "packets dropped, with a source address other than the box's"),
        (own.dropped, "packets dropped, since too many packets waited to be sent"),
    ];
    for (count, what) in counters.sentences().chain(more).filter(|&(count, _)| count > 0) {
        line(format_args!("{count:>12}  {what}"))?;
    }
    if let Some(order) = order.filter(|order| order.answered > 0) {
        let figures = order_figures(&order);
        line(format_args!(
            "{:>12}  requests answered, {} were sent again; {:.2} % of the answers in order, largest gap {}, and {:.2} % of the \
             requests answered behind a later one to the same address",
            order.answered,
            order.repeated,
            figures[&Figure::InOrder],
            order.largest_gap,
            figures[&Figure::SameAddressOutOfOrder]
        ))?;
    }
    for (name, count) in link.iter().filter(|&(_, &count)| count > 0) {
        line(format_args!("{count:>12}  {name}, on the box's link"))?;
    }
    Ok(())
}
