//! Fuzzing of the descriptions that a hostile peer sends at set-up. The fuzz function makes connections by these
//! descriptions and uses the connections.

use std::cell::RefCell;

use doorbell_exchange::buffered_write::{self, BufferedWrite, Notification};
use doorbell_exchange::direct_read::{Acknowledge, DirectRead};
use doorbell_exchange::setup::{EndpointDescription, RemoteRegion};
use doorbell_exchange::{BufferedRead, Connector, DirectWrite, MessageConnection, SendReceive, SharedWrite};
use doorbell_verbs::{PathMtu, Psn, Qpn, RKey};

use super::super::bare::{Bare, Stage, config};
use super::Choices;

thread_local! {
    static STAGE: RefCell<Stage> = RefCell::new(Stage::new());
}

/// Decodes the bytes as a description, or uses the bytes to change a valid description.
pub fn fuzz_descriptions(data: &[u8]) {
    let mut choices = Choices(data);
    let variant = choices.byte() % 10;
    if variant == 0 {
        if let Ok(description) = EndpointDescription::decode(choices.0) {
            let mut bytes = Vec::new();
            description.encode(&mut bytes);
            assert_eq!(
                EndpointDescription::decode(&bytes),
                Ok(description),
                "decoding returns the encoded description"
            );
        }
        return;
    }
    STAGE.with_borrow_mut(|stage| {
        let write = |notification| BufferedWrite { notification, acknowledge: buffered_write::Acknowledge::Read };
        match variant {
            1 => meet(stage, &mut choices, SendReceive),
            2 => meet(stage, &mut choices, DirectRead::default()),
            3 => meet(stage, &mut choices, DirectRead { acknowledge: Acknowledge::Send, ..DirectRead::default() }),
            4 => meet(stage, &mut choices, DirectWrite::default()),
            5 => meet(stage, &mut choices, write(Notification::Immediate)),
            6 => meet(stage, &mut choices, write(Notification::TailOffset)),
            7 => meet(stage, &mut choices, write(Notification::Reverse)),
            8 => meet(stage, &mut choices, BufferedRead),
            _ => meet(stage, &mut choices, SharedWrite::default()),
        }
        stage.check_health();
    });
}

fn meet<P: Connector>(stage: &mut Stage, choices: &mut Choices<'_>, protocol: P) {
    let change = |own: &mut EndpointDescription| {
        for _ in 0..choices.below(6) {
            change(own, choices);
        }
        let mut bytes = Vec::new();
        own.encode(&mut bytes);
        *own = EndpointDescription::decode(&bytes).expect("each description can be encoded");
    };
    let (mut bare, connected) = Bare::meet(&protocol, &stage.pd, &stage.other, &config(), change);
    let Ok(mut connection) = connected else { return };
    for _ in 0..10 {
        let _ = connection.send(&vec![1; choices.below(401)]);
        let _ = connection.flush();
        bare.poll();
        let _ = connection.poll();
        assert!(connection.take().is_none(), "a message arrived that was not sent");
    }
}

fn change(own: &mut EndpointDescription, choices: &mut Choices<'_>) {
    let number = |choices: &mut Choices<'_>| match choices.byte() % 6 {
        0 => 0,
        1 => u64::from(choices.byte()),
        2 => 4096 * u64::from(choices.byte()),
        3 => 1 << (choices.byte() % 64),
        4 => u64::MAX - u64::from(choices.byte()),
        _ => choices.word(),
    };
    match choices.byte() % 11 {
        0 => own.qpn = Qpn::new(number(choices) as u32),
        1 => own.psn = Psn::new(number(choices) as u32),
        2 => own.path_mtu = PathMtu::try_from(1 + choices.byte() % 5).expect("codes are 1 to 5"),
        3 => own.udp_port = number(choices) as u16,
        4 => own.depth = number(choices) as u32,
        5 => own.max_message = number(choices),
        6 => own.credits ^= true,
        7 => own.gid = (u128::from(choices.word()) << 64 | u128::from(choices.word())).into(),
        8 => own.regions[choices.below(2)].address = number(choices),
        9 => own.regions[choices.below(2)].length = number(choices),
        _ => {
            let region = choices.below(2);
            own.regions[region] = match choices.chance() {
                true => RemoteRegion::NONE,
                false => RemoteRegion { rkey: RKey::new(choices.word() as u32), ..own.regions[region] },
            };
        }
    }
}
