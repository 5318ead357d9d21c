//! Waits of requests for threads and links that others use.
//!
//! Each connection has a completion queue of its own, so a thread looks at its connections in turns. A message that
//! arrives waits until the thread looks at its connection, and for the messages that the thread serves before. The
//! thread is a polling system: cyclic service with a constant time for each look. In a symmetric one, the mean wait is
//!
//! ```text
//! W = (c u + r s) / (2 (1 - r))
//! ```
//!
//! with `c` connections, a look of `u`, a constant service of `s` besides the look, and the share `r` of time in which
//! the thread serves (O. J. Boxma and W. P. Groenendijk, Pseudo-conservation laws in cyclic-service systems, J. Appl.
//! Prob. 24, 1987, without their term of `r u`, which differs with the discipline). Without looks, this is the wait of
//! a queue with constant services.
//!
//! The loop is closed: each of `n` requests meets the other `n - 1`, as in mean value analysis (M. Reiser and S. S.
//! Lavenberg, Mean-value analysis of closed multichain queuing networks, J. ACM 27, 1980). If a round trip takes `R`,
//! and a request takes `b` of a server's time in `k` visits, then `r = (n - 1) b / R`, and `R` solves
//!
//! ```text
//! R = alone + sum over servers of k (W(R) - u / 2)
//! ```
//!
//! The latency alone contains the mean wait for a thread that looks at one connection, `u / 2`. The right side falls
//! with `R`, so there is one solution. In an open loop, `r` is the offered rate times `b`.
//!
//! A link is a server without looks. Requests that cross it once take turns in a closed loop, so their bound predicts
//! simulated round trips within 2 %, also where the link is nearly saturated. Exact mean value analysis assumes random
//! services, and is up to 22 % above the simulation there. The further messages of a READ or an atomic come between the
//! messages of other requests, and wait.
//!
//! Requests of several sizes in an open loop wait for each other. A wait meets a service of `S^2 / S`, with the means
//! of the squares and of the services. Requests of one crossing, which are due at regular times, wait
//!
//! ```text
//! W = r (S^2 / S - S) / (2 (1 - r)) exp(-2 (1 - r) / (3 r v))    with v = S^2 / (S S) - 1
//! ```
//!
//! (W. Kraemer and M. Langenbach-Belz, Approximate formulae for the delay in the queueing system GI/G/1, Proc. 8th Int.
//! Teletraffic Congress, 1976). Of equal services, none waits.

/// Thread or link that serves requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Server {
    /// Number of connections at which the server looks in turns.
    pub(super) connections: f64,
    /// Number of outstanding requests of these connections.
    pub(super) in_flight: f64,
    /// Number of times that each request waits for the server.
    pub(super) visits: f64,
    /// Number of times that each request crosses the server in turn with others. Requests of one size do not wait then.
    pub(super) turns: f64,
    /// Nanoseconds of a look at a connection.
    pub(super) look_ns: f64,
    /// Nanoseconds of a service, besides the look, behind which a visit may find itself.
    pub(super) service_ns: f64,
    /// Nanoseconds in which the server serves a request, besides all looks.
    pub(super) busy_ns: f64,
}

impl Server {
    /// Returns the mean nanoseconds for which a request waits for the server, beyond the wait of a request alone. The
    /// wait is infinite if the server cannot serve all requests within `round_trip_ns`.
    fn wait_ns(&self, round_trip_ns: f64) -> f64 {
        self.offered_wait_ns((self.in_flight - 1.0).max(0.0) * self.busy_ns / round_trip_ns)
    }

    /// Returns the mean nanoseconds for which a request waits for the server, which serves others for the share `busy`
    /// of the time.
    pub(super) fn offered_wait_ns(&self, busy: f64) -> f64 {
        if self.visits == 0.0 {
            return 0.0;
        }
        if busy >= 1.0 {
            return f64::INFINITY;
        }
        let turn_ns = self.connections * self.look_ns;
        self.visits * ((turn_ns + busy * self.service_ns) / (2.0 * (1.0 - busy)) - self.look_ns / 2.0)
    }

    /// Returns the mean nanoseconds for which requests of an open loop wait for the server, which serves them for the
    /// share `busy` of the time. `sizes` has the server for the requests of each size, and their share of all requests.
    pub(super) fn mix_wait_ns(sizes: &[(f64, Self)], busy: f64) -> f64 {
        let mean = |of: fn(&Self) -> f64| sizes.iter().map(|(share, server)| share * of(server)).sum::<f64>();
        let busy_ns = mean(|server| server.busy_ns);
        if busy_ns == 0.0 {
            return mean(|server| server.offered_wait_ns(0.0));
        }
        // A request meets a long service more often than a short one.
        let met_ns = mean(|server| server.busy_ns * server.service_ns) / busy_ns;
        let polled =
            |(share, server): &(f64, Self)| share * Self { service_ns: met_ns, ..*server }.offered_wait_ns(busy);
        let in_turn_ns = regular_wait_ns(busy, mean(|server| server.service_ns), met_ns);
        sizes.iter().map(polled).sum::<f64>() + mean(|server| server.turns) * in_turn_ns
    }

    /// Returns an upper limit of the share of the server in a round trip that is the sum of such shares. The server is
    /// busy for less than half of such a round trip.
    fn most_ns(&self) -> f64 {
        let turn_ns = self.connections * self.look_ns;
        self.visits * (turn_ns + self.service_ns) + (2.0 * self.in_flight + 1.0) * self.busy_ns
    }
}

/// Returns the mean nanoseconds for which requests that are due at regular times wait for a server. `met_ns` is the
/// mean of the squares of the services, divided by their mean.
fn regular_wait_ns(busy: f64, mean_ns: f64, met_ns: f64) -> f64 {
    let variation = met_ns / mean_ns - 1.0;
    if variation < 1e-9 || busy == 0.0 {
        return 0.0;
    }
    let fewer = (-2.0 * (1.0 - busy) / (3.0 * busy * variation)).exp();
    busy * (met_ns - mean_ns) / (2.0 * (1.0 - busy)) * fewer
}

/// Number of halvings of the interval that contains the round trip, for all digits of an `f64`.
const HALVINGS: usize = 64;

/// Returns the mean nanoseconds of a round trip, with the waits for the servers. `alone_ns` is the round trip of a
/// request alone.
pub(super) fn round_trip_ns(alone_ns: f64, servers: &[Server]) -> f64 {
    let waits_ns = |round_trip_ns: f64| servers.iter().map(|server| server.wait_ns(round_trip_ns)).sum::<f64>();
    let (mut least, mut most) = (alone_ns, alone_ns + servers.iter().map(Server::most_ns).sum::<f64>());
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(least, most);
        if alone_ns + waits_ns(middle) > middle {
            least = middle;
        } else {
            most = middle;
        }
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a thread that serves each request at once, with one outstanding request per connection.
    fn server(connections: u32, look_ns: f64, service_ns: f64) -> Server {
        let count = f64::from(connections);
        Server {
            connections: count,
            in_flight: count,
            visits: 1.0,
            turns: 0.0,
            look_ns,
            service_ns,
            busy_ns: service_ns,
        }
    }

    /// Returns the round trip of `requests` by exact mean value analysis: queueing stations with random services of the
    /// given means, and a delay.
    fn by_mean_values(delay_ns: f64, services_ns: &[f64], requests: u32) -> f64 {
        let mut queues = vec![0.0; services_ns.len()];
        let mut round_trip_ns = delay_ns;
        for count in 1..=requests {
            let times: Vec<f64> =
                services_ns.iter().zip(&queues).map(|(service, queue): (&f64, &f64)| service * (1.0 + queue)).collect();
            round_trip_ns = delay_ns + times.iter().sum::<f64>();
            queues = times.iter().map(|time| f64::from(count) * time / round_trip_ns).collect();
        }
        round_trip_ns
    }

    fn is_near(value: f64, expected: f64) -> bool {
        (value / expected - 1.0).abs() < 1e-9
    }

    #[test]
    fn mean_value_analysis_has_its_closed_forms() {
        // One station without delay serves all requests one after the other.
        assert!(is_near(by_mean_values(0.0, &[100.0], 16), 1600.0));
        // k balanced stations: (n + k - 1) services.
        assert!(is_near(by_mean_values(0.0, &[100.0; 3], 8), 1000.0));
        assert!(is_near(by_mean_values(500.0, &[100.0], 1), 600.0));
    }

    #[test]
    fn one_request_does_not_wait() {
        assert!(is_near(round_trip_ns(4000.0, &[server(1, 40.0, 160.0), server(1, 40.0, 160.0)]), 4000.0));
        assert!(is_near(round_trip_ns(4000.0, &[]), 4000.0));
    }

    #[test]
    fn looks_alone_add_half_a_turn() {
        // 16 connections without services: half of 16 looks, instead of half of one.
        assert!(is_near(round_trip_ns(4000.0, &[server(16, 40.0, 0.0)]), 4000.0 + 7.5 * 40.0));
    }

    #[test]
    fn a_round_trip_solves_its_equation() {
        // 2 (R - A) (R - K) = c u R + s K, with A = alone - u / 2 and K = (n - 1) s.
        let (alone, look, service) = (4300.0, 40.0, 160.0);
        for count in [2_u32, 16, 64, 1024] {
            let n = f64::from(count);
            let (a, k) = (alone - look / 2.0, (n - 1.0) * service);
            let linear = 2.0 * (a + k) + n * look;
            let root = (linear + (linear * linear - 8.0 * (2.0 * a * k - service * k)).sqrt()) / 4.0;
            assert!(is_near(round_trip_ns(alone, &[server(count, look, service)]), root), "{count} connections");
        }
    }

    #[test]
    fn waits_are_between_none_and_those_of_random_services() {
        for count in [2, 4, 8, 16, 64] {
            for delay in [0.0, 500.0, 4000.0, 20_000.0] {
                for stations in 1..=2_u32 {
                    let service = 160.0;
                    let servers = vec![server(count, 0.0, service); stations as usize];
                    let alone = delay + f64::from(stations) * service;
                    let found = round_trip_ns(alone, &servers).max(f64::from(count) * service);
                    let random = by_mean_values(delay, &vec![service; stations as usize], count);
                    let context = format!("{count} requests, {delay} ns, {stations} stations: {found}, {random}");
                    assert!(found >= alone && found <= random * (1.0 + 1e-9), "{context}");
                }
            }
        }
    }

    #[test]
    fn each_visit_of_a_request_waits() {
        let twice = Server { visits: 2.0, ..server(16, 40.0, 0.0) };
        assert!(is_near(round_trip_ns(4000.0, &[twice]), 4000.0 + 15.0 * 40.0));
        let unseen = Server { visits: 0.0, ..server(16, 40.0, 160.0) };
        assert!(is_near(round_trip_ns(4000.0, &[unseen]), 4000.0));
    }

    #[test]
    fn requests_in_turn_wait_for_longer_ones_only() {
        let link = |service_ns| Server { visits: 0.0, turns: 1.0, ..server(1, 0.0, service_ns) };
        let wait = |sizes: &[(f64, Server)], busy| Server::mix_wait_ns(sizes, busy);
        assert!(wait(&[(0.5, link(100.0)), (0.5, link(100.0))], 0.9) == 0.0, "equal services take turns");
        let mix = [(0.9, link(100.0)), (0.1, link(10_000.0))];
        let times = [0.0, 0.1, 0.5, 0.9].map(|busy| wait(&mix, busy));
        assert!(times[0] == 0.0 && times.is_sorted(), "{times:?}");
        // At a high load, half of the service that a request meets, less the mean, for each free share of the time.
        let (mean, met) =
            (0.9 * 100.0 + 0.1 * 10_000.0, (0.9 * 100.0_f64.powi(2) + 0.1 * 10_000.0_f64.powi(2)) / 1090.0);
        assert!((0.95..1.0).contains(&(times[3] / (0.9 / 0.2 * (met - mean)))), "{times:?}");
    }

    #[test]
    fn one_size_of_a_mix_waits_as_without_the_mix() {
        for busy in [0.0, 0.3, 0.9] {
            let one = server(16, 40.0, 160.0);
            assert!(is_near(Server::mix_wait_ns(&[(0.3, one), (0.7, one)], busy), one.offered_wait_ns(busy)), "{busy}");
        }
    }

    #[test]
    fn looks_and_connections_lengthen_a_round_trip() {
        let of = |count, look| round_trip_ns(4300.0, &[server(count, look, 160.0)]);
        assert!(of(4, 40.0) < of(16, 40.0) && of(16, 40.0) < of(64, 40.0));
        assert!(of(16, 0.0) < of(16, 40.0) && of(16, 40.0) < of(16, 80.0));
    }
}
