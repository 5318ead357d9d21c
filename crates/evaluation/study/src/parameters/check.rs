//! Validation of parameters.

use doorbell_exchange::MAX_BATCH;
use doorbell_exchange::setup::MAX_ENDPOINTS;
use doorbell_protocols::Protocol;
use doorbell_verbs::PathMtu;
use doorbell_wire::cost::ATOMIC_BYTES;

use super::{Extent, Kind, Operation, Parameters, ParametersError, Setting, Transport, most_queued, within};

/// Maximum number of sizes of one run.
const MAX_SIZES: usize = 1024;
/// Bytes of the longest message.
const MAX_MESSAGE: usize = 1 << 30;
/// Maximum number of messages per connection.
const MAX_MESSAGES: u64 = 1_000_000_000_000_000;

impl Parameters {
    /// Validates the parameters, and checks that each size [`fits`](Self::fit) into the memory cap. The end that
    /// receives parameters from its peer validates them too.
    ///
    /// # Errors
    ///
    /// A setting is out of range, conflicts with another, or needs more memory than
    /// [`memory_bytes`](Self::memory_bytes). The error states the setting, the given value and the allowed values.
    pub fn check(&self) -> Result<(), ParametersError> {
        within(Setting::Sizes, self.sizes.len(), 1, MAX_SIZES, "")?;
        within(Setting::Connections, self.connections, 1, MAX_ENDPOINTS, "")?;
        let most_queued = most_queued(self.connections);
        within(Setting::Window, self.window, 1, most_queued, "")?;
        within(Setting::Depth, self.depth, 1, most_queued, "")?;
        within(Setting::Batch, self.batch, 1, MAX_BATCH.min(self.window), "")?;
        within(Setting::Inline, self.inline, 0, 1024, " B")?;
        within(Setting::Timeout, self.timeout, 0, 31, "")?;
        within(Setting::RetryCount, self.retry_count, 0, 7, "")?;
        within(Setting::RnrRetry, self.rnr_retry, 0, 7, "")?;
        within(Setting::SlowReceiver, self.slow_receiver_us, 0, 1_000_000, " us")?;
        within(Setting::Memory, self.memory_bytes, 1 << 20, 1 << 40, " B")?;
        match self.extent {
            Extent::Messages(messages) => within(Setting::Messages, messages, 1, MAX_MESSAGES, "")?,
            Extent::Seconds(seconds) => within(Setting::Seconds, seconds, 0.01, 86_400.0, " s")?,
        }
        if let Some(rate) = self.rate {
            within(Setting::Rate, rate, 0.001, 1e9, " messages/s")?;
        }
        if let Some(mtu) = self.mtu
            && PathMtu::from_bytes(mtu).is_none()
        {
            let (given, allowed) = (format!("{mtu} B"), "256, 512, 1024, 2048 or 4096 B".to_owned());
            return Err(ParametersError { setting: Setting::Mtu, given, allowed });
        }
        if self.bidirectional
            && let Some(allowed) = match (self.kind, self.operation) {
                (Kind::Latency, Operation::Send) => Some("off for a ping-pong, which sends both ways anyway"),
                (_, Operation::RequestResponse) => Some("off for requests, whose answers go the other way"),
                (_, operation) if operation.is_one_sided() => Some("off for one-sided operations"),
                _ => None,
            }
        {
            let (given, allowed) = ("on".to_owned(), allowed.to_owned());
            return Err(ParametersError { setting: Setting::Bidirectional, given, allowed });
        }
        if self.operation.is_one_sided() && self.slow_receiver_us > 0 {
            let given = format!("{} us", self.slow_receiver_us);
            let allowed = "0 us for one-sided operations, which have no receiver".to_owned();
            return Err(ParametersError { setting: Setting::SlowReceiver, given, allowed });
        }
        self.check_protocol()?;
        self.check_transport()?;
        self.serving.check(self)?;
        self.check_addresses()?;
        if let Some(far) = &self.far {
            far.check()?;
        }
        for &size in &self.sizes {
            within(Setting::Size, size, 0, MAX_MESSAGE, " B")?;
            if self.operation.is_atomic() && size as u64 != ATOMIC_BYTES {
                let (given, allowed) = (format!("{size} B"), format!("{ATOMIC_BYTES} B for atomic operations"));
                return Err(ParametersError { setting: Setting::Size, given, allowed });
            }
            self.fit(size)?;
        }
        Ok(())
    }

    /// Checks the settings for unacknowledged transports. They support bare SENDs, one way or as a ping-pong, by one
    /// polling thread.
    fn check_transport(&self) -> Result<(), ParametersError> {
        if self.transport == Transport::Rc {
            return Ok(());
        }
        let serving = &self.serving;
        let others = [
            (self.operation != Operation::Send, "operations other than send"),
            (self.protocol != Protocol::default(), "protocols, since messages of other transports are bare SENDs"),
            (self.bidirectional, "messages in both directions"),
            (self.events, "ends that sleep until an event"),
            (self.slow_receiver_us > 0, "a slow receiver"),
            (serving.threads > 1, "several threads"),
            (serving.single_receiver, "a single receiver"),
            (serving.shared_receives.is_some(), "shared receive buffers"),
        ];
        if let Some((_, what)) = others.into_iter().find(|(is_wanted, _)| *is_wanted) {
            let (given, allowed) = (self.transport.to_string(), format!("rc for {what}"));
            return Err(ParametersError { setting: Setting::Transport, given, allowed });
        }
        // Ends learn their path MTU only during setup. Until then, limit UD messages to the requested or the largest
        // path MTU.
        let most =
            if self.transport == Transport::Ud { self.mtu.unwrap_or(PathMtu::Mtu4096.bytes()) } else { MAX_MESSAGE };
        self.sizes.iter().try_for_each(|&size| within(Setting::Size, size, 0, most, " B (over UD the path MTU)"))
    }

    /// Checks the number of words that the connections share.
    fn check_addresses(&self) -> Result<(), ParametersError> {
        let Some(addresses) = self.addresses else { return Ok(()) };
        within(Setting::Addresses, addresses, 1, self.connections, "")?;
        if !self.operation.is_atomic() || self.verify {
            let (given, allowed) = (addresses.to_string(), "the number of connections, except for unverified atomics");
            return Err(ParametersError { setting: Setting::Addresses, given, allowed: allowed.to_owned() });
        }
        Ok(())
    }

    /// Checks settings that only some protocols support.
    fn check_protocol(&self) -> Result<(), ParametersError> {
        let refuse =
            |setting, given: &str, allowed: String| Err(ParametersError { setting, given: given.to_owned(), allowed });
        let protocol = self.protocol;
        if self.operation.is_one_sided() && protocol != Protocol::default() {
            let allowed = "send-receive with one-sided operations, which use no protocol";
            return refuse(Setting::Protocol, protocol.name(), allowed.to_owned());
        }
        if !self.credits && !protocol.is_possible_without_credits() {
            return refuse(Setting::Credits, "off", format!("on for {protocol}, which requires credits"));
        }
        if self.events && !protocol.properties().receiver_sleeps && !self.operation.is_one_sided() {
            let allowed = format!("off for {protocol}, whose receiver polls memory and gets no event");
            return refuse(Setting::Events, "on", allowed);
        }
        if self.replicate {
            if protocol != Protocol::DirectReadSend && protocol != Protocol::DirectReadFencedSend {
                let allowed = "off except for direct-read-send and direct-read-fenced-send, whose readers report \
                               when they have read the message";
                return refuse(Setting::Replicate, "on", allowed.to_owned());
            }
            let is_stream = self.kind == Kind::Bandwidth && self.operation == Operation::Send;
            if !is_stream || self.bidirectional || self.events || self.serving.threads > 1 {
                let allowed = "off unless one polling thread sends one way".to_owned();
                return refuse(Setting::Replicate, "on", allowed);
            }
        }
        Ok(())
    }
}
