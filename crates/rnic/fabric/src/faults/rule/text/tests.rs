//! Rules as text.

use proptest::prelude::*;

use super::super::super::{FaultPlan, FaultPlanError};
use super::*;

fn error(text: &str) -> String {
    text.parse::<FaultPlan>().unwrap_err().to_string()
}

#[test]
fn rules_print_as_they_are_read() {
    for rule in [
        "drop opcode=ack nth=1",
        "drop name=own direction=out opcode=ack nth=1",
        "duplicate nth=2 copies=1 for=1s",
        "duplicate name=a.b-c_1 opcode=read-response position=middle psn-offset=2..4 copies=2",
        "delay optional=true peer=10.0.0.1 nth=1..18446744073709551615 for=5ms",
        "reorder qp=18 behind=3",
        "reorder qp-order=2 every=3",
        "corrupt opcode=send share=0.25",
        "corrupt opcode=write byte=3 value=255 icrc=valid",
        "corrupt opcode=rc-acknowledge field=syndrome value=96",
        "black-hole after=1ms before=2ms for=1s",
        "black-hole opcode=0x1f retransmission=1..3 count=7",
        "ecn message-offset=4096",
        "port-down opcode=request nth=2 for=20ms",
        "device-fatal opcode=read-request nth=1",
        "completion qp=17 nth=3 operation=write status=rem-access-err",
        "completion qp-order=2 every=4 status=retry-exc-err queue-pair=kept",
        "post-error nth=1 operation=receive errno=ENOMEM",
        "post-error share=0.5 errno=4000",
        "call-error nth=2 call=create-qp errno=EAGAIN",
        "slow-poll after=1ms operation=send for=5ms",
        "event nth=1 event=qp-fatal queue-pair=kept",
        "event nth=1 operation=receive event=srq-limit-reached",
    ] {
        let plan: FaultPlan = rule.parse().unwrap();
        assert_eq!(plan.to_string(), format!("seed=0;{rule}"));
        assert_eq!(plan.to_string().parse(), Ok(plan));
    }
    let plan: FaultPlan = "drop=0.1,seed=3; drop nth=3.. optional; ecn qp=0x12".parse().unwrap();
    assert_eq!(plan.rules().len(), 2);
    assert!(plan.rules()[0].is_optional() && plan.shares().seed == 3);
    assert_eq!("drop = 0.5, seed = 3".parse::<FaultPlan>().unwrap().to_string(), "drop=0.5,seed=3");
}

#[test]
fn contradictions_are_refused_with_a_sentence() {
    for (text, parts) in [
        ("drop nth=5..2", ["nth", "range 5..2 is empty"]),
        ("drop nth=0", ["nth", "a number from 1"]),
        ("drop opcode=acks", ["\"acks\"", "a class (ack, nak"]),
        ("drop opcode=ack position=middle", ["position", "no packet"]),
        ("drop opcode=read-request message-offset=1", ["message-offset", "no packet"]),
        ("drop nth=2..3 every=3", ["every", "none is number 3"]),
        ("drop after=2ms before=1ms", ["before", "not later"]),
        ("drop optional", ["action", "matches every packet"]),
        ("drop direction=out", ["action", "matches every packet"]),
        ("drop direction=sideways nth=1", ["direction", "in or out"]),
        ("drop nth=1 copies=2", ["copies", "duplicate"]),
        ("drop nth=1 nth=2", ["nth", "twice"]),
        ("drop first", ["first", "no value"]),
        ("melt nth=1", ["\"melt\"", "black-hole"]),
        ("blackhole", ["no value", "a rule as drop opcode=ack nth=1"]),
        ("drop where=1", ["where", "unknown"]),
        ("delay nth=1", ["for", "missing"]),
        ("black-hole nth=1", ["for", "count=PACKETS"]),
        ("port-down nth=1", ["for", "missing"]),
        ("device-fatal nth=1 for=1s", ["for", "port-down"]),
        ("port-down nth=1 for=1s; ecn nth=1", ["port-down and ecn", "same packets"]),
        ("black-hole nth=1 for=1s count=2", ["for", "either"]),
        ("corrupt nth=1 field=speed", ["field", "syndrome"]),
        ("corrupt nth=1 field=psn byte=1", ["byte", "one of them"]),
        ("corrupt nth=1 field=syndrome value=256", ["value", "0 to 255"]),
        ("corrupt nth=1 field=icrc icrc=valid", ["icrc", "valid"]),
        ("corrupt nth=1 value=1", ["value", "drawn"]),
        ("corrupt opcode=send field=syndrome", ["field", "no packet"]),
        ("drop opcode=ack nth=1; duplicate opcode=ack nth=1", ["drop and duplicate", "same packets"]),
        ("drop opcode=ack; delay opcode=ack nth=5 for=1ms", ["drop and delay", "same packets"]),
        ("ecn opcode=ack nth=2 share=0.5; drop opcode=ack nth=1..3", ["ecn and drop", "same packets"]),
        ("drop opcode=send; corrupt opcode=send field=psn nth=2", ["drop and corrupt", "same packets"]),
        ("drop nth=1..3; corrupt nth=2", ["drop and corrupt", "same packets"]),
        ("black-hole nth=1 for=1s; drop nth=1", ["black-hole and drop", "same packets"]),
        ("drop position=first message-offset=4096", ["message-offset", "no packet"]),
        ("drop opcode=send position=middle message-offset=0", ["message-offset", "no packet"]),
        ("drop before=0s", ["before", "is 0"]),
        ("corrupt nth=1 byte=4096", ["byte", "0 to 4095"]),
        ("drop name=a nth=1; drop name=a nth=2", ["name", "two rules"]),
        ("drop=0.1; drop=0.2", ["two lists", "one list"]),
        ("completion nth=1", ["status", "rem-access-err"]),
        ("completion status=rem-access-err", ["action", "every call"]),
        ("completion nth=1 status=success", ["status", "rem-op-err"]),
        ("completion nth=1 status=rem-op-err opcode=ack", ["opcode", "an action on packets"]),
        ("drop nth=1 status=rem-op-err", ["status", "the action is drop"]),
        ("post-error nth=1 errno=EWHAT", ["errno", "ENOMEM"]),
        ("post-error nth=1 errno=0", ["errno", "1 to 4095"]),
        ("call-error call=create-qp", ["errno", "missing"]),
        ("call-error call=create-qp errno=EIO qp=17", ["qp", "modify-qp and attach-mcast"]),
        ("slow-poll nth=1", ["for", "missing"]),
        ("event nth=1 event=sq-drained queue-pair=error", ["queue-pair", "kept"]),
        ("completion nth=1 status=rem-op-err;completion nth=1 status=bad-resp-err", ["action", "only one"]),
    ] {
        let error = error(text);
        assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
    }
    for text in [
        "drop opcode=ack nth=1..3; ecn opcode=ack nth=3..4",
        "drop opcode=ack every=2; ecn opcode=ack nth=2",
        "drop opcode=ack share=0.5; ecn opcode=ack nth=2",
        "drop opcode=ack qp=3; ecn opcode=ack nth=2",
        "drop opcode=ack; port-down opcode=ack nth=5 for=1ms",
        "device-fatal opcode=ack nth=5; drop opcode=ack",
        "drop opcode=ack; black-hole opcode=ack nth=5 count=2",
        "black-hole nth=1 for=1s; port-down nth=1 for=1s",
        "drop nth=1..3; corrupt nth=2 field=remote-address",
        "drop position=first message-offset=0..4096",
        "corrupt nth=1 byte=4095",
    ] {
        assert!(text.parse::<FaultPlan>().is_ok(), "{text}");
    }
}

#[test]
fn files_have_the_same_rules_and_errors_name_the_line() {
    let head = "schema = \"doorbell-fault-plan/1\"\nseed = 7\n";
    let text = format!("{head}[[rule]]\naction = \"drop\"\nopcode = \"ack\"\nnth = 1\noptional = true\n");
    let plan = FaultPlan::from_toml("a.toml", &text).unwrap();
    assert_eq!(plan.to_string(), "seed=7;drop optional=true opcode=ack nth=1");
    for (tail, expected) in [
        ("[[rule]]\naction = \"drop\"\nnth = 0\n", "a.toml:5: rule.nth: the value is \"0\", allowed is a number"),
        ("[[rule]]\naction = \"melt\"\n", "a.toml:4: rule.action: the value is \"melt\", allowed is drop"),
        ("[[rule]]\nnth = 1\n", "a.toml:3: rule.action: the field is missing"),
        ("[[rule]]\naction = \"drop\"\nnth = [1]\n", "a.toml:5: rule.nth: the value is of type array"),
        ("speed = 1\n", "a.toml:3: speed: the field is unknown"),
        ("", "a.toml:1: rule: the plan has no rule"),
        ("rule = 1 2\n", "a.toml:3: the file: the text is no TOML"),
    ] {
        let error = FaultPlan::from_toml("a.toml", &format!("{head}{tail}")).unwrap_err();
        assert!(matches!(error, FaultPlanError::File { .. }));
        assert!(error.to_string().starts_with(expected), "{tail:?}: {error}");
    }
    let error = FaultPlan::from_toml("a.toml", "seed = 1\n").unwrap_err().to_string();
    assert!(error.starts_with("a.toml:1: schema: the field is missing"), "{error}");
}

#[test]
fn the_fields_list_all_names() {
    let lists = |field: &str, name: &str| {
        let is_separator = |letter: char| !letter.is_ascii_alphanumeric() && letter != '-';
        assert!(allowed(field).split(is_separator).any(|word| word == name), "{name} is missing at {field}");
    };
    PacketKind::CLASSES.iter().for_each(|(name, _)| lists("opcode", name));
    PacketField::ALL.iter().for_each(|known| lists("field", known.name));
    Position::NAMES.iter().for_each(|(name, _)| lists("position", name));
    Direction::NAMES.iter().for_each(|(name, _)| lists("direction", name));
    ACTIONS.iter().for_each(|name| lists("action", name));
    calls::OPERATIONS.iter().for_each(|(name, _)| lists("operation", name));
    calls::VerbsCall::ALL.iter().for_each(|(_, name, _)| lists("call", name));
    calls::RaisedEvent::ALL.iter().for_each(|(name, _)| lists("event", name));
    for status in doorbell_verbs_core::Status::FAILED {
        lists("status", &calls::status_name(status));
    }
}

proptest! {
    #[test]
    fn no_rule_panics(field in "[a-z-]{1,10}|nth|psn|for|value|byte|opcode", value in "[a-z0-9.x+-]{0,20}") {
        for action in ACTIONS {
            if let Ok(plan) = format!("{action} {field}={value} nth=1").parse::<FaultPlan>() {
                prop_assert_eq!(plan.to_string().parse(), Ok(plan));
            }
        }
    }

    #[test]
    fn no_file_panics(text in ".{0,80}") {
        let _ = FaultPlan::from_toml("a.toml", &format!("schema = \"doorbell-fault-plan/1\"\n{text}"));
    }
}
