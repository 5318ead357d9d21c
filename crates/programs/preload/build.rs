//! Makes the drop-in libraries `libibverbs.so.1` and `librdmacm.so.1` of the lists in `abi/`.
//!
//! A drop-in has the soname, the version nodes and the symbols of the library that it replaces. Each of its functions
//! is one jump through the table that `src/dropin.rs` exports from `libdoorbell_ibverbs.so`. So both drop-ins and the
//! preloaded library share one state. rustc passes an anonymous version script for each cdylib, and linkers reject
//! named nodes beside it. Therefore this script calls the assembler and the linker itself, through the same `cc` as
//! rustc.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

/// Soname of the library that has the table.
const SHARED: &str = "libdoorbell_ibverbs.so";

/// Names of the libraries that the drop-ins replace, without `.so`.
const REPLACED: [&str; 2] = ["libibverbs", "librdmacm"];

/// Folders in which a drop-in looks for [`SHARED`]: those of an installation, of a build, and of a build for tests.
const RUNPATH: &str = "$ORIGIN/..:$ORIGIN/../..:$ORIGIN/../../deps";

/// Options with which other crates link [`SHARED`], beside its soname.
const LINK_OPTIONS: &[&str] = &[
    // Without this option, the dynamic linker could fill the table with the functions of a drop-in, which jump through
    // the table.
    "-Wl,-Bsymbolic-functions",
    // A program may close a drop-in while threads of the library run.
    "-Wl,-z,nodelete",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=abi");
    println!("cargo::rerun-if-env-changed=RUSTC_LINKER");
    // Build scripts of crates that depend on this one read DEP_DOORBELL_IBVERBS_LINK_OPTIONS. A drop-in finds the
    // preloaded library by its soname, even if the two come from different folders.
    println!("cargo::metadata=link_options=-Wl,-soname,{SHARED} {}", LINK_OPTIONS.join(" "));
    if let Err(why) = make() {
        println!("cargo::error={why}");
        process::exit(1);
    }
}

fn make() -> Result<(), String> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let mut table = Table::default();
    let libraries = REPLACED.map(|name| Library::read(name, &mut table));
    write(&out.join("calls.rs"), &table.rust())?;
    let machine = match (variable("CARGO_CFG_TARGET_ARCH")?.as_str(), variable("CARGO_CFG_TARGET_ENV")?.as_str()) {
        ("x86_64", "gnu") => Machine::X86,
        ("aarch64", "gnu") => Machine::Arm,
        // Other C libraries know no versions of symbols. On other processors, programs are only reached by preloading.
        _ => return Ok(()),
    };
    // The libraries are linked before rustc has made the shared one. The linker only needs its soname.
    let stand_in = out.join(SHARED);
    let symbol = table.symbol();
    let text = format!(".data\n.globl {symbol}\n.type {symbol}, %object\n.size {symbol}, 8\n{symbol}: .quad 0\n");
    link(&stand_in, SHARED, &(text + NO_EXECUTABLE_STACK), &[])?;
    let mut made = Vec::new();
    for library in libraries {
        let library = library?;
        let soname = format!("{}.so.1", library.name);
        let script = out.join(library.name).with_extension("map");
        write(&script, &library.version_script())?;
        let options = [
            format!("-Wl,--version-script={}", script.display()),
            format!("-Wl,--enable-new-dtags,-rpath,{RUNPATH}"),
            "-Wl,-z,now,--strip-all".to_owned(),
            stand_in.to_string_lossy().into_owned(),
        ];
        let drop_in = out.join(&soname);
        link(&drop_in, &soname, &library.assembly(machine, &symbol), &options)?;
        publish(&drop_in, &out, library.name, &soname)?;
        made.push(drop_in);
    }
    let list = env::join_paths(made).map_err(|error| format!("{} cannot be named: {error}", out.display()))?;
    println!("cargo::metadata=drop_ins={}", list.display());
    Ok(())
}

/// Marks that the code needs no executable stack.
const NO_EXECUTABLE_STACK: &str = ".section .note.GNU-stack,\"\",%progbits\n";

#[derive(Clone, Copy)]
enum Machine {
    X86,
    Arm,
}

impl Machine {
    /// Returns a jump through the entry of the table. The code changes only registers that the calling convention
    /// leaves to such code, so arguments reach the function unchanged.
    fn jump(self, symbol: &str, entry: usize) -> String {
        let at = 8 * entry;
        match self {
            Self::X86 => format!("endbr64\nmovq {symbol}@GOTPCREL(%rip), %r11\njmpq *{at}(%r11)\n"),
            Self::Arm => format!(
                "hint #34\nadrp x16, :got:{symbol}\nldr x16, [x16, :got_lo12:{symbol}]\nldr x16, [x16, #{at}]\nbr x16\n"
            ),
        }
    }
}

/// The functions behind the symbols of all drop-ins, each once.
#[derive(Default)]
struct Table {
    entries: Vec<(String, String)>,
    numbers: HashMap<(String, String), usize>,
}

impl Table {
    /// Returns the number of the entry for a function of this kind.
    fn number(&mut self, kind: &str, name: &str) -> usize {
        let key = (kind.to_owned(), name.to_owned());
        *self.numbers.entry(key.clone()).or_insert_with(|| {
            self.entries.push(key);
            self.entries.len() - 1
        })
    }

    /// Returns the name of the exported table. The name depends on the entries, so the dynamic linker rejects a drop-in
    /// of another version.
    fn symbol(&self) -> String {
        let mut hash = DefaultHasher::new();
        self.entries.hash(&mut hash);
        format!("doorbell_calls_{:016x}", hash.finish())
    }

    /// Returns the part of `src/dropin.rs` that depends on the lists.
    fn rust(&self) -> String {
        let mut declared = String::new();
        let mut refused: Vec<(&str, String)> = Vec::new();
        let mut entries = String::new();
        for (kind, name) in &self.entries {
            let path = match kind.split_once('.') {
                None if kind == "own" => {
                    let _ = writeln!(declared, "    fn {name}();");
                    name.clone()
                }
                None => format!("plain::{name}"),
                Some((reason, result)) => {
                    let line = format!("    refused!({result} {} {name});\n", reason.to_uppercase());
                    match refused.iter_mut().find(|(other, _)| *other == reason) {
                        Some((_, lines)) => lines.push_str(&line),
                        None => refused.push((reason, line)),
                    }
                    format!("{reason}::{name}")
                }
            };
            let _ = writeln!(entries, "    Call({path} as *const ()),");
        }
        let mut text = format!("unsafe extern \"C\" {{\n{declared}}}\n");
        for (reason, lines) in refused {
            let _ = writeln!(text, "mod {reason} {{\n    use super::*;\n{lines}}}");
        }
        let (symbol, count) = (self.symbol(), self.entries.len());
        let _ = writeln!(text, "#[unsafe(export_name = \"{symbol}\")]\nstatic CALLS: [Call; {count}] = [\n{entries}];");
        text
    }
}

struct Node {
    name: String,
    parent: String,
}

struct Symbol {
    name: String,
    node: String,
    is_hidden: bool,
    /// Number in the table, or `None` for data.
    entry: Option<usize>,
}

struct Library {
    name: &'static str,
    nodes: Vec<Node>,
    symbols: Vec<Symbol>,
}

impl Library {
    /// Reads the list of a library, whose head describes the format.
    fn read(name: &'static str, table: &mut Table) -> Result<Self, String> {
        let path = format!("abi/{name}.txt");
        let text = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let mut library = Self { name, nodes: Vec::new(), symbols: Vec::new() };
        let mut current: Vec<String> = Vec::new();
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let words: Vec<&str> = line.split(' ').collect();
            match &words[..] {
                ["node", node, parents @ ..] => {
                    current = vec![(*node).to_owned()];
                    library.nodes.push(Node { name: (*node).to_owned(), parent: parents.concat() });
                }
                ["nodes", nodes @ ..] => {
                    current = nodes.iter().map(|node| (*node).to_owned()).collect();
                    let without_parent = |node: &String| Node { name: node.clone(), parent: String::new() };
                    library.nodes.extend(current.iter().map(without_parent));
                }
                [kind, symbol, marks @ ..] => {
                    let entry = (*kind != "data").then(|| table.number(kind, symbol));
                    // A name has one version that the linker chooses for new programs.
                    for (position, node) in current.iter().enumerate() {
                        library.symbols.push(Symbol {
                            name: (*symbol).to_owned(),
                            node: node.clone(),
                            is_hidden: position > 0 || marks == ["hidden"],
                            entry,
                        });
                    }
                }
                _ => return Err(format!("{path}: {line:?} is neither a node nor a kind and a name")),
            }
        }
        Ok(library)
    }

    fn version_script(&self) -> String {
        let mut script = String::new();
        for (number, node) in self.nodes.iter().enumerate() {
            // The labels of the assembly stay inside the library.
            let local = if number == 0 { "local: symbol[0-9]*; " } else { "" };
            let _ = writeln!(script, "{} {{ {local}}} {};", node.name, node.parent);
        }
        script
    }

    fn assembly(&self, machine: Machine, table: &str) -> String {
        let (mut code, mut data) = (String::from(".text\n"), String::from(".bss\n"));
        for (number, symbol) in self.symbols.iter().enumerate() {
            let (text, kind, body) = match symbol.entry {
                Some(entry) => (&mut code, "function", machine.jump(table, entry)),
                None => (&mut data, "object", ".zero 1\n".to_owned()),
            };
            let label = format!("symbol{number}");
            let version = if symbol.is_hidden { "@" } else { "@@" };
            let _ = write!(
                text,
                ".globl {label}\n.type {label}, %{kind}\n{label}:\n{body}.size {label}, .-{label}\n\
                 .symver {label}, {}{version}{}\n",
                symbol.name, symbol.node
            );
        }
        code + &data + NO_EXECUTABLE_STACK
    }
}

/// Assembles and links a library.
fn link(to: &Path, soname: &str, assembly: &str, options: &[String]) -> Result<(), String> {
    let source = to.with_extension("s");
    write(&source, assembly)?;
    let linker = env::var("RUSTC_LINKER").unwrap_or_else(|_| "cc".to_owned());
    let mut command = Command::new(&linker);
    command.args(["-shared", "-nostdlib", "-o"]).arg(to).arg(&source).args(options);
    command.arg(format!("-Wl,-soname,{soname}"));
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let first: Vec<&str> = said.lines().take(3).collect();
            Err(format!("{linker} could not link {soname}: {}", first.join("; ")))
        }
        Err(error) => Err(format!("{linker} could not be started: {error}")),
    }
}

/// Puts a library into the folder `lib/doorbell` beside the built programs, where `doorbell run` finds it. The name
/// without a version is a link.
fn publish(made: &Path, out: &Path, name: &str, soname: &str) -> Result<(), String> {
    let Some(profile) = out.ancestors().find(|folder| folder.ends_with("build")).and_then(Path::parent) else {
        println!("cargo::warning={} lies in no build folder: {soname} stays there", out.display());
        return Ok(());
    };
    let folder = profile.join("lib/doorbell");
    // Other builds of this crate may do the same now.
    let fresh = folder.join(format!("{soname}.{}", process::id()));
    let place = || -> io::Result<()> {
        fs::create_dir_all(&folder)?;
        fs::copy(made, &fresh)?;
        fs::rename(&fresh, folder.join(soname))?;
        std::os::unix::fs::symlink(soname, &fresh)?;
        fs::rename(&fresh, folder.join(name).with_extension("so"))
    };
    place().map_err(|error| format!("{soname} could not be put into {}: {error}", folder.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{} could not be written: {error}", path.display()))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("cargo did not set {name}"))
}
