//! Modules of a crate, and circles between them.
//!
//! Module A uses module B if A's code names something that B defines, also through re-exports. Tests do not count.
//! Paths in the arguments of macros are not seen. A module and the modules below it may use each other. Only the root
//! of a binary must not be used from below.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree, Visibility};

/// Path of a module from the root of its crate. The path of the root module is empty.
type Names = Vec<String>;

/// Maximum number of re-exports that [`Modules::home`] follows for one name.
const REEXPORTS_MAX: usize = 16;

#[derive(Debug, Default)]
struct Module {
    /// Names of the items that the module defines.
    items: BTreeSet<String>,
    /// Imports and re-exports. The key is the name in this module, the value is the path as written.
    imports: BTreeMap<String, Names>,
    /// Paths of glob imports (`use path::*`).
    globs: Vec<Names>,
    /// Paths that the code of the module names, as written.
    named: BTreeSet<Names>,
}

/// The modules of a crate, by path.
#[derive(Debug, Default)]
struct Modules {
    all: BTreeMap<Names, Module>,
    is_binary: bool,
}

/// Returns the circles between modules of the crate with this root file, each with its modules in order.
pub(super) fn circles(root: &Path) -> Result<Vec<Vec<String>>, String> {
    let is_binary = root.ends_with("main.rs");
    let mut modules = Modules { is_binary, ..Modules::default() };
    modules.load(root, Vec::new())?;
    Ok(modules.circles())
}

impl Modules {
    /// Loads the module of a file, and all modules below.
    fn load(&mut self, file: &Path, path: Names) -> Result<(), String> {
        let cannot = |error: &dyn std::fmt::Display| format!("{}: {error}", file.display());
        let text = fs::read_to_string(file).map_err(|error| cannot(&error))?;
        let parsed = syn::parse_file(&text).map_err(|error| cannot(&error))?;
        self.add(file, path, &parsed.items)
    }

    fn add(&mut self, file: &Path, path: Names, items: &[Item]) -> Result<(), String> {
        let mut module = Module::default();
        let mut below = Vec::new();
        for item in items {
            match item {
                Item::Mod(inner) if !is_test(&inner.attrs) => below.push(inner),
                Item::Mod(_) => {}
                item => module.visit_item(item),
            }
        }
        self.all.insert(path.clone(), module);
        for inner in below {
            let path = [&path[..], &[inner.ident.to_string()]].concat();
            match &inner.content {
                Some((_, items)) => self.add(file, path, items)?,
                None => self.load(&file_of(file, &path, inner), path)?,
            }
        }
        Ok(())
    }

    /// Converts a path as written in a module to a path from the root. Returns `None` for names of other crates.
    fn path_from_root(&self, module: &[String], written: &[String]) -> Option<Names> {
        let mut base = module.to_vec();
        let mut rest = written;
        let mut is_relative = false;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" => base.clear(),
                "self" => {}
                "super" => drop(base.pop()),
                _ => break,
            }
            (rest, is_relative) = (others, true);
        }
        let first = rest.first();
        let is_below =
            first.is_some_and(|first| self.all.contains_key(&[&base[..], std::slice::from_ref(first)].concat()));
        (is_relative || is_below).then(|| [&base[..], rest].concat())
    }

    /// Returns the module that defines the name at the end of a path from the root.
    fn home(&self, path: &[String], depth: usize) -> Option<Names> {
        let mut at: Names = Vec::new();
        for (index, name) in path.iter().enumerate() {
            let below = [&at[..], std::slice::from_ref(name)].concat();
            if self.all.contains_key(&below) {
                at = below;
                continue;
            }
            let module = self.all.get(&at)?;
            if module.items.contains(name) || depth == REEXPORTS_MAX {
                return Some(at);
            }
            if let Some(import) = module.imports.get(name) {
                let target = self.path_from_root(&at, import)?;
                return self.home(&[&target[..], &path[index + 1..]].concat(), depth + 1);
            }
            let globs =
                module.globs.iter().filter_map(|glob| self.path_from_root(&at, glob)).filter(|glob| *glob != at);
            let through = |glob: Names| {
                let found = self.home(&[&glob[..], &path[index..]].concat(), depth + 1)?;
                let defines = self.all.get(&found).is_some_and(|module| module.items.contains(name));
                (defines || found.last() == Some(name)).then_some(found)
            };
            return globs.filter(|_| depth < REEXPORTS_MAX).find_map(through).or(Some(at));
        }
        Some(at)
    }

    /// Returns all pairs of modules of which the first module uses the second one.
    fn arrows(&self) -> BTreeSet<(Names, Names)> {
        let mut arrows = BTreeSet::new();
        for (path, module) in &self.all {
            let imports = module.imports.values().chain(&module.globs);
            for written in module.named.iter().chain(imports) {
                let Some(absolute) = self.path_from_root(path, written) else { continue };
                if let Some(target) = self.home(&absolute, 0).filter(|target| target != path) {
                    arrows.insert((path.clone(), target));
                }
            }
        }
        arrows
    }

    /// Returns all circles. The modules of a circle have the same parent module.
    fn circles(&self) -> Vec<Vec<String>> {
        let mut graphs: BTreeMap<Names, BTreeMap<Names, BTreeSet<Names>>> = BTreeMap::new();
        for (from, to) in self.arrows() {
            let shared = from.iter().zip(&to).take_while(|(one, other)| one == other).count();
            let side = |path: &Names| path[..path.len().min(shared + 1)].to_vec();
            let (one, other) = (side(&from), side(&to));
            let is_with_parent = one.len().min(other.len()) == shared;
            if is_with_parent && !(self.is_binary && shared == 0) {
                continue;
            }
            let graph = graphs.entry(from[..shared].to_vec()).or_default();
            graph.entry(other.clone()).or_default();
            graph.entry(one).or_default().insert(other);
        }
        let mut circles = Vec::new();
        for graph in graphs.values() {
            let reach: BTreeMap<&Names, BTreeSet<&Names>> =
                graph.keys().map(|from| (from, reachable(graph, from))).collect();
            let mut done = BTreeSet::new();
            for from in graph.keys() {
                let circle: Vec<&Names> = reach[from].iter().copied().filter(|to| reach[*to].contains(from)).collect();
                if circle.len() > 1 && done.insert(circle.clone()) {
                    circles.push(circle.into_iter().map(|path| shown(path)).collect());
                }
            }
        }
        circles
    }
}

/// Returns all modules that can be reached from a module, including this module.
fn reachable<'a>(graph: &'a BTreeMap<Names, BTreeSet<Names>>, from: &'a Names) -> BTreeSet<&'a Names> {
    let (mut found, mut open) = (BTreeSet::from([from]), vec![from]);
    while let Some(next) = open.pop() {
        open.extend(graph[next].iter().filter(|to| found.insert(to)));
    }
    found
}

fn shown(path: &[String]) -> String {
    if path.is_empty() { "crate".to_owned() } else { path.join("::") }
}

/// Returns the file of a module that is declared in another file.
fn file_of(declared_in: &Path, path: &[String], module: &ItemMod) -> PathBuf {
    let folder = declared_in.parent().unwrap_or(Path::new(""));
    let given = module.attrs.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(file), .. }) = &pair.value else { return None };
        pair.path.is_ident("path").then(|| file.value())
    });
    if let Some(given) = given {
        return folder.join(given);
    }
    let stem = declared_in.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let folder = if matches!(stem, "mod" | "lib" | "main") { folder.to_path_buf() } else { folder.join(stem) };
    // A module inside a file has its own folder below the folder of the file.
    let name = path.last().map_or("", String::as_str);
    let (flat, nested) = (folder.join(name).with_extension("rs"), folder.join(name).join("mod.rs"));
    if flat.exists() { flat } else { nested }
}

/// Returns whether an item exists only in tests.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else { return attribute.path().is_ident("test") };
        let condition = list.tokens.to_string();
        let words: Vec<&str> = condition.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        list.path.is_ident("cfg") && words.contains(&"test") && !words.contains(&"not")
    })
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(it) => &it.attrs,
        Item::Enum(it) => &it.attrs,
        Item::Fn(it) => &it.attrs,
        Item::Impl(it) => &it.attrs,
        Item::Macro(it) => &it.attrs,
        Item::Static(it) => &it.attrs,
        Item::Struct(it) => &it.attrs,
        Item::Trait(it) => &it.attrs,
        Item::Type(it) => &it.attrs,
        Item::Union(it) => &it.attrs,
        Item::Use(it) => &it.attrs,
        _ => &[],
    }
}

fn name_of(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(it) => &it.ident,
        Item::Enum(it) => &it.ident,
        Item::Fn(it) => &it.sig.ident,
        Item::Macro(it) => it.ident.as_ref()?,
        Item::Static(it) => &it.ident,
        Item::Struct(it) => &it.ident,
        Item::Trait(it) => &it.ident,
        Item::Type(it) => &it.ident,
        Item::Union(it) => &it.ident,
        _ => return None,
    };
    Some(name.to_string())
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            self.items.extend(name_of(item));
            visit::visit_item(self, item);
        }
    }

    // Items inside a function or block are not items of the module.
    fn visit_block(&mut self, block: &'ast syn::Block) {
        let items = self.items.clone();
        visit::visit_block(self, block);
        self.items = items;
    }

    fn visit_item_use(&mut self, import: &'ast ItemUse) {
        let mut leaves = Vec::new();
        flatten(&import.tree, &mut Vec::new(), &mut leaves);
        for (name, path) in leaves {
            match name {
                Some(name) => drop(self.imports.insert(name, path)),
                None => self.globs.push(path),
            }
        }
    }

    // A path in `pub(in path)` does not count as a use.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            self.named.insert(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }
}

/// Adds all names that a `use` tree imports to `leaves`. Each leaf has the imported name, or `None` for a glob import,
/// and the path.
fn flatten(tree: &UseTree, before: &mut Names, leaves: &mut Vec<(Option<String>, Names)>) {
    let with = |last: String| [&before[..], &[last]].concat();
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, leaves);
            before.pop();
        }
        UseTree::Name(name) if name.ident == "self" => leaves.push((before.last().cloned(), before.clone())),
        UseTree::Name(name) => leaves.push((Some(name.ident.to_string()), with(name.ident.to_string()))),
        UseTree::Rename(rename) => leaves.push((Some(rename.rename.to_string()), with(rename.ident.to_string()))),
        UseTree::Glob(_) => leaves.push((None, before.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, before, leaves)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the circles of a crate with these files. The first file is the root of the crate.
    fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        circles(&folder.path().join(files[0].0)).unwrap().iter().map(|circle| circle.join(", ")).collect()
    }

    #[test]
    fn siblings_that_use_each_other_are_a_circle() {
        let with = |b: &str| {
            circles_of(&[("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B; pub struct A(B);"), ("b.rs", b)])
        };
        assert_eq!(with("pub struct B; fn f() { super::a::g() }"), ["a, b"]);
        assert_eq!(with("pub struct B; fn f(_: &crate::a::A) {}"), ["a, b"]);
        assert!(with("pub struct B;").is_empty());
        assert!(with("pub struct B; #[cfg(test)] mod tests { use crate::a::A; }").is_empty());
        assert!(with("pub struct B; #[cfg(test)] use crate::a::A;").is_empty());
    }

    #[test]
    fn reexports_lead_to_the_module_that_defines_a_name() {
        let lib = "mod a; mod b; pub use a::A; pub use b::*;";
        assert_eq!(
            circles_of(&[
                ("lib.rs", lib),
                ("a.rs", "use crate::B; pub struct A;"),
                ("b.rs", "use crate::A; pub struct B;")
            ]),
            ["a, b"]
        );
        assert!(
            circles_of(&[("lib.rs", lib), ("a.rs", "pub struct A;"), ("b.rs", "use crate::A; pub struct B;")])
                .is_empty()
        );
    }

    #[test]
    fn only_the_root_of_a_binary_must_not_be_used_from_below() {
        let root = "mod a; pub struct Failure; fn f() { a::run() }";
        let a = ("a.rs", "use crate::Failure; pub fn run() {}");
        assert_eq!(circles_of(&[("main.rs", root), a]), ["crate, a"]);
        assert!(circles_of(&[("main.rs", root), ("a.rs", "pub fn run() {}")]).is_empty());
        assert!(circles_of(&[("lib.rs", root), a]).is_empty());
    }

    #[test]
    fn modules_below_others_are_compared_with_their_siblings() {
        let nested = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod b; mod c; use b::B;"),
            ("a/b.rs", "use super::c::C; pub struct B;"),
            ("a/c/mod.rs", "use super::b::B; pub struct C;"),
        ];
        assert_eq!(circles_of(&nested), ["a::b, a::c"]);
    }
}
