//! Validation of parameters.

mod far;

use doorbell_exchange::MAX_WINDOW;
use doorbell_protocols::Protocol;
use doorbell_verbs::PathMtu;
use doorbell_wire::cost::ATOMIC_BYTES;

use crate::memory::MAX_MESSAGE;
use crate::mix::SizeMix;
use crate::parameters::Parameters;
use crate::settings::{
    ADDRESSES, BIDIRECTIONAL, BUFFERS, CREDITS, DEPTH, EVENTS, MIX, PROTOCOL, ParametersError, REPLICATE, REPLY,
    SERVER_THREADS, SETTINGS, SHARED_RECEIVES, SINGLE_RECEIVER, SIZE, SIZES, SLOW_RECEIVER, THINK, THREADS, TRANSPORT,
    within,
};
use crate::words::{Kind, Operation, Transport};

/// Maximum number of sizes of one run.
const MAX_SIZES: usize = 1024;
impl Parameters {
    /// Validates the parameters, and checks that each size [`fits`](Self::fit) into the memory cap. The end that
    /// receives parameters from its peer validates them too.
    ///
    /// # Errors
    ///
    /// A setting is out of range, conflicts with another, or needs more memory than
    /// [`memory_bytes`](Self::memory_bytes). The error states the setting, the given value and the allowed values.
    pub fn check(&self) -> Result<(), ParametersError> {
        within(&SIZES, self.sizes.len(), 1, MAX_SIZES, "")?;
        SETTINGS.iter().try_for_each(|setting| setting.check(self))?;
        if self.bidirectional
            && let Some(allowed) = match (self.kind, self.operation) {
                (Kind::Latency, Operation::Send) => Some("off for a ping-pong, which sends both ways anyway"),
                (_, Operation::RequestResponse) => Some("off for requests, whose answers go the other way"),
                (_, operation) if operation.is_one_sided() => Some("off for one-sided operations"),
                _ => None,
            }
        {
            return Err(BIDIRECTIONAL.refuse("on", allowed));
        }
        if self.operation.is_one_sided() && self.slow_receiver_us > 0 {
            let allowed = "0 us for one-sided operations, which have no receiver";
            return Err(SLOW_RECEIVER.refuse(format!("{} us", self.slow_receiver_us), allowed));
        }
        self.check_replies()?;
        self.check_mix()?;
        self.check_protocol()?;
        self.check_transport()?;
        self.check_serving()?;
        self.check_addresses()?;
        self.check_buffers()?;
        if let Some(far) = &self.far {
            far.check()?;
        }
        for &size in &self.sizes {
            if self.operation.is_atomic() && size as u64 != ATOMIC_BYTES {
                return Err(SIZE.refuse(format!("{size} B"), format!("{ATOMIC_BYTES} B for atomic operations")));
            }
            self.fit(size)?;
        }
        Ok(())
    }

    /// Checks the settings of replies.
    fn check_replies(&self) -> Result<(), ParametersError> {
        let is_answered = self.operation == Operation::RequestResponse;
        match self.reply {
            Some(0) if is_answered => {
                let allowed = format!("1 to {MAX_MESSAGE} B with request-response; send has no reply");
                return Err(REPLY.refuse("0 B", allowed));
            }
            Some(reply @ 1..) if !is_answered => {
                return Err(REPLY.refuse(format!("{reply} B"), "0 B unless the operation is request-response"));
            }
            _ => {}
        }
        let thinks = self.think_us > 0;
        let allowed = match self.rate {
            _ if thinks && !is_answered => "0 us unless the operation is request-response",
            Some(_) if thinks => "0 us with a rate, which fixes the time of each request",
            _ => return Ok(()),
        };
        Err(THINK.refuse(format!("{} us", self.think_us), allowed))
    }

    /// Checks the mix of sizes.
    fn check_mix(&self) -> Result<(), ParametersError> {
        let Some(mix) = &self.mix else { return Ok(()) };
        mix.check().map_err(|(given, allowed)| MIX.refuse(given, allowed))?;
        let others = [
            (self.sizes != [mix.longest()], "one size without a mix, and with a mix its longest size"),
            (self.operation.is_one_sided(), "one size for one-sided operations"),
            (self.transport != Transport::Rc, "one size for transports other than rc"),
            (self.bidirectional, "one size for messages in both directions"),
            (self.replicate, "one size for one source for all connections"),
            (!SizeMix::suits(self.protocol), "one size (-s) with buffered-read, whose READs carry several messages"),
        ];
        match others.into_iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, allowed)) => {
                let count = mix.0.len();
                Err(MIX.refuse(format!("{count} size{}", if count == 1 { "" } else { "s" }), allowed))
            }
            None => Ok(()),
        }
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
            (serving.threads > 1 || serving.server_threads > 1, "several threads"),
            (serving.single_receiver, "a single receiver"),
            (serving.shared_receives.is_some(), "shared receive buffers"),
        ];
        if let Some((_, what)) = others.into_iter().find(|(is_wanted, _)| *is_wanted) {
            return Err(TRANSPORT.refuse(self.transport.to_string(), format!("rc for {what}")));
        }
        // Ends learn their path MTU only during setup. Until then, limit UD messages to the requested or the largest
        // path MTU.
        let most =
            if self.transport == Transport::Ud { self.mtu.unwrap_or(PathMtu::Mtu4096.bytes()) } else { MAX_MESSAGE };
        self.sizes.iter().try_for_each(|&size| within(&SIZE, size, 0, most, " B (over UD the path MTU)"))
    }

    /// Checks the number of words that the connections share.
    fn check_addresses(&self) -> Result<(), ParametersError> {
        let Some(addresses) = self.addresses else { return Ok(()) };
        if !self.operation.is_atomic() || self.verify {
            let allowed = "the number of connections, except for unverified atomics";
            return Err(ADDRESSES.refuse(addresses.to_string(), allowed));
        }
        Ok(())
    }

    /// Checks the number of buffers, whose messages overwrite each other.
    fn check_buffers(&self) -> Result<(), ParametersError> {
        let Some(buffers) = self.buffers else { return Ok(()) };
        let is_possible = matches!(self.operation, Operation::Send | Operation::Write | Operation::Read);
        let others = [
            (self.verify, "payloads that are checked"),
            (self.protocol != Protocol::SendReceive, "protocols other than send-receive"),
            (self.transport != Transport::Rc, "transports other than rc"),
            (!is_possible, "operations other than send, write and read"),
            (self.mix.is_some(), "a mix of sizes"),
            (self.serving.shared_receives.is_some(), "shared receive buffers"),
        ];
        match others.into_iter().find(|(is_wanted, _)| *is_wanted) {
            Some((_, what)) => {
                let allowed = format!("a buffer for each message (without the option) for {what}");
                Err(BUFFERS.refuse(buffers.to_string(), allowed))
            }
            None => Ok(()),
        }
    }

    /// Checks settings that only some protocols support.
    fn check_protocol(&self) -> Result<(), ParametersError> {
        let protocol = self.protocol;
        if self.operation.is_one_sided() && protocol != Protocol::default() {
            let allowed = "send-receive with one-sided operations, which use no protocol";
            return Err(PROTOCOL.refuse(protocol.name(), allowed));
        }
        if !self.credits && !protocol.is_possible_without_credits() {
            return Err(CREDITS.refuse("off", format!("on for {protocol}, which requires credits")));
        }
        if self.events && !protocol.properties().receiver_sleeps && !self.operation.is_one_sided() {
            let allowed = format!("off for {protocol}, whose receiver polls memory and gets no event");
            return Err(EVENTS.refuse("on", allowed));
        }
        if self.replicate {
            if protocol != Protocol::DirectReadSend && protocol != Protocol::DirectReadFencedSend {
                let allowed = "off except for direct-read-send and direct-read-fenced-send, whose readers report \
                               when they have read the message";
                return Err(REPLICATE.refuse("on", allowed));
            }
            let is_stream = self.kind == Kind::Bandwidth && self.operation == Operation::Send;
            if !is_stream || self.bidirectional || self.events || self.serving.threads > 1 {
                return Err(REPLICATE.refuse("on", "off unless one polling thread sends one way"));
            }
        }
        Ok(())
    }

    /// Checks the threads and receive buffers against the other parameters.
    fn check_serving(&self) -> Result<(), ParametersError> {
        let serving = &self.serving;
        let is_stream = self.kind == Kind::Bandwidth && self.operation == Operation::Send;
        let goes = is_stream && !self.bidirectional && !self.events;
        let is_polled = self.kind == Kind::Bandwidth && !self.events;
        let is_answered = is_polled && self.operation == Operation::RequestResponse;
        let may_share = goes || is_answered || is_polled && self.operation.is_one_sided();
        if serving.threads > 1 && !may_share {
            return Err(THREADS.refuse(serving.threads.to_string(), "1 with lat, -e or -b"));
        }
        let may_serve = is_answered || goes && !serving.single_receiver && !self.replicate;
        if serving.server_threads > 1 && !may_serve {
            let allowed = "0 or 1 with lat, -e, -b, --single-receiver, --replicate or one-sided operations";
            return Err(SERVER_THREADS.refuse(serving.server_threads.to_string(), allowed));
        }
        if serving.single_receiver && !goes {
            return Err(SINGLE_RECEIVER.refuse("on", "off unless messages go one way, to a receiver that polls"));
        }
        for (setting, is_on) in
            [(&SINGLE_RECEIVER, serving.single_receiver), (&SHARED_RECEIVES, serving.shared_receives.is_some())]
        {
            if is_on && self.protocol != Protocol::SendReceive {
                return Err(setting.refuse("on", "off for protocols other than send-receive"));
            }
        }
        if serving.shared_receives.is_some() {
            if !goes {
                return Err(SHARED_RECEIVES.refuse("on", "off unless messages go one way, to a receiver that polls"));
            }
            within(&DEPTH, self.depth, self.connections, MAX_WINDOW, "")?;
        }
        Ok(())
    }
}
