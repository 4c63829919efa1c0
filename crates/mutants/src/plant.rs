//! Planting all of a file's mutants at once: each of cargo-mutants' replacements becomes a choice at run time.
//!
//! Nothing is written twice, so that mutants within mutants cost nothing: `a && b` becomes
//! `{ let left = a; if left != mutant(7) { b } else { left } }`, which is `a || b` for mutant 7.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use anyhow::{Context, Result};
use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, BinOp, Expr, ExprBinary, ExprStruct, ExprUnary, UnOp};

use crate::list::{Genre, Mutant};

/// What may be around the same code: more than there are signs instead of one.
const LAYERS: i64 = 64;
/// What is around an expression, whatever is planted in it.
const OUTER: i64 = 16;

/// A file with its mutants.
#[derive(Debug, Default)]
pub struct Planted {
    /// What the compiler gets.
    pub text: String,
    /// Those for which there is no choice at run time.
    pub left_out: BTreeSet<usize>,
    /// Those that no compiler takes.
    pub no_program: BTreeSet<usize>,
    /// What was written for which mutants, and the code that they change.
    pieces: Vec<Piece>,
}

#[derive(Debug)]
struct Piece {
    /// In the text for the compiler.
    at: Range<usize>,
    mutants: Vec<usize>,
}

impl Planted {
    /// The mutants to which a place in the text belongs: those whose own words stand there, or else those of the smallest
    /// changed expression around it.
    pub fn around(&self, at: &Range<usize>) -> Vec<usize> {
        let holds = |piece: &&Piece| piece.at.start <= at.start && at.end <= piece.at.end;
        let Some(least) = self.pieces.iter().filter(holds).min_by_key(|piece| piece.at.len()) else {
            return Vec::new();
        };
        let same = self.pieces.iter().filter(|piece| piece.at == least.at);
        same.flat_map(|piece| piece.mutants.clone()).collect()
    }
}

/// A change of the text: `text` instead of what stands at `at`.
struct Edit {
    at: Range<usize>,
    /// Among those at one place: what ends comes before what begins, within before around.
    order: (u8, i64),
    text: String,
    /// The mutants that the text itself is of.
    mutants: Vec<usize>,
}

/// An expression around which something is planted, for the errors of the compiler.
struct Node {
    at: Range<usize>,
    mutants: Vec<usize>,
}

/// Writes `mutants` into `source`. `constant` are functions that must stay `const`.
///
/// # Errors
/// When the source is no Rust.
pub fn plant(source: &str, mutants: &[(usize, &Mutant)], constant: &BTreeSet<String>) -> Result<Planted> {
    let file = syn::parse_file(source).context("parse the source")?;
    let mut planter = Planter {
        source,
        wanted: BTreeMap::new(),
        edits: Vec::new(),
        nodes: Vec::new(),
        done: BTreeSet::new(),
        no_program: BTreeSet::new(),
        constant,
        matches: Vec::new(),
        never: false,
    };
    for (number, mutant) in mutants {
        let key = (mutant.genre, mutant.at.start);
        planter.wanted.entry(key).or_default().push((*number, mutant));
    }
    planter.visit_file(&file);
    let mut planted = planter.render();
    let numbers = mutants.iter().map(|(number, _)| *number);
    planted.left_out = numbers
        .filter(|number| !planter.done.contains(number) && !planter.no_program.contains(number))
        .collect();
    planted.no_program = planter.no_program;
    Ok(planted)
}

struct Planter<'a> {
    source: &'a str,
    wanted: BTreeMap<(Genre, usize), Vec<(usize, &'a Mutant)>>,
    edits: Vec<Edit>,
    nodes: Vec<Node>,
    done: BTreeSet<usize>,
    no_program: BTreeSet<usize>,
    constant: &'a BTreeSet<String>,
    /// The `match` expressions around.
    matches: Vec<Range<usize>>,
    /// The code around runs when it is compiled.
    never: bool,
}

fn range(span: Span) -> Range<usize> {
    span.byte_range()
}

fn numbers(mutants: &[(usize, &Mutant)]) -> Vec<usize> {
    mutants.iter().map(|(number, _)| *number).collect()
}

/// `if` one of them is chosen, what it has instead.
fn choices(mutants: &[(usize, &Mutant)], write: impl Fn(&str) -> String) -> String {
    let one = |(number, mutant): &(usize, &Mutant)| {
        let instead = write(&mutant.replacement);
        format!("if crate::mutant({number}) {{ {instead} }} else ")
    };
    mutants.iter().map(one).collect()
}

impl<'a> Planter<'a> {
    fn take(&mut self, genre: Genre, start: usize) -> Vec<(usize, &'a Mutant)> {
        if self.never {
            return Vec::new();
        }
        self.wanted.remove(&(genre, start)).unwrap_or_default()
    }

    /// Writes `before` and `after` around the code at `node`. `layer` tells among those with the same code which is around.
    fn wrap(&mut self, node: &Range<usize>, layer: i64, before: String, after: String, mutants: &[(usize, &Mutant)]) {
        let size = i64::try_from(node.len()).unwrap_or(i64::MAX) * LAYERS + layer;
        self.edit(node.start..node.start, (2, -size), before, mutants);
        self.edit(node.end..node.end, (0, size), after, mutants);
        self.node(node.clone(), mutants);
    }

    fn edit(&mut self, at: Range<usize>, order: (u8, i64), text: String, mutants: &[(usize, &Mutant)]) {
        let mutants = numbers(mutants);
        self.done.extend(&mutants);
        self.edits.push(Edit {
            at,
            order,
            text,
            mutants,
        });
    }

    fn node(&mut self, at: Range<usize>, mutants: &[(usize, &Mutant)]) {
        let mutants = numbers(mutants);
        self.nodes.push(Node { at, mutants });
    }

    /// The value of `genre`'s mutants at the head of a function.
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        if let Some(word) = &signature.constness {
            self.edit(range(word.span()), (1, 0), String::new(), &[]);
        }
        let Some(first) = block.stmts.first() else { return };
        let start = range(first.span()).start;
        if matches!(&signature.output, syn::ReturnType::Type(_, kind) if self.text(&range(kind.span())).contains("impl "))
        {
            return;
        }
        for (number, mutant) in self.take(Genre::Function, start) {
            let text = format!("if crate::mutant({number}) {{ return {}; }} ", mutant.replacement);
            self.edit(start..start, (2, i64::MIN), text, &[(number, mutant)]);
        }
    }

    /// A function without mutants where its name says that it runs when the program is compiled.
    fn within(&mut self, signature: &syn::Signature, block: &syn::Block, visit: impl FnOnce(&mut Self)) {
        let outside = self.never;
        self.never |= signature.constness.is_some() && self.constant.contains(&signature.ident.to_string());
        if !self.never {
            self.function(signature, block);
        }
        visit(self);
        self.never = outside;
    }

    fn text(&self, at: &Range<usize>) -> &'a str {
        &self.source[at.clone()]
    }

    fn binary(&mut self, node: &ExprBinary) {
        let operator = range(node.op.span());
        let at = range(node.span());
        let found = self.take(Genre::Binary, operator.start);
        // `if let … && …` has no other form: Rust knows no `let` beside `||`.
        if has_let(&node.left) || has_let(&node.right) {
            self.no_program.extend(numbers(&found));
            return;
        }
        if found.is_empty() {
            return;
        }
        let sign = self.text(&operator);
        let (left, right, place) = match node.op {
            BinOp::And(_) | BinOp::Or(_) => {
                let [(number, _)] = found[..] else { return };
                let (yes, after) = match node.op {
                    BinOp::And(_) => ("", " } else { left } })"),
                    _ => ("left } else { ", " } })"),
                };
                let between = format!("; if left != crate::mutant({number}) {{ {yes}");
                self.edit(operator, (1, 0), between, &found);
                self.wrap(&at, 0, "({ let left: bool = ".to_owned(), after.to_owned(), &found);
                return;
            }
            BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) => ("&(", "&(", ""),
            _ if sign.ends_with('=') => ("&mut (", "(", "*"),
            _ => ("(", "(", ""),
        };
        self.edit(operator, (1, 0), format!("), {right}"), &found);
        self.wrap(
            &at,
            0,
            format!("(match ({left}"),
            ")) { (left, right) => ".to_owned(),
            &found,
        );
        // One piece for each, so that an error names one.
        let size = i64::try_from(at.len()).unwrap_or(i64::MAX) * LAYERS;
        for (layer, one) in (1..).zip(&found) {
            let text = choices(&[*one], |sign| format!("{place}left {sign} right"));
            self.edit(at.end..at.end, (0, size + layer), text, &[*one]);
        }
        let text = format!("{{ {place}left {sign} right }} }})");
        self.edit(at.end..at.end, (0, size + OUTER - 1), text, &found);
    }

    fn render(&mut self) -> Planted {
        self.edits.sort_by_key(|edit| (edit.at.start, edit.order));
        let mut planted = Planted::default();
        // Where the places of the source are in the text.
        let mut moved = Vec::new();
        let mut done = 0;
        for edit in &self.edits {
            planted.text.push_str(&self.source[done..edit.at.start]);
            let start = planted.text.len();
            planted.text.push_str(&edit.text);
            if !edit.mutants.is_empty() {
                planted.pieces.push(Piece {
                    at: start..planted.text.len(),
                    mutants: edit.mutants.clone(),
                });
            }
            moved.push((edit.at.clone(), start..planted.text.len()));
            done = edit.at.end;
        }
        planted.text.push_str(&self.source[done..]);
        for Node { at, mutants } in &self.nodes {
            let after = moved.iter().find(|(source, _)| source.start >= at.start);
            let (source, text) = after.map_or((self.source.len(), planted.text.len()), |(source, text)| {
                (source.start, text.start)
            });
            let start = text - (source - at.start);
            let before = moved.iter().rfind(|(source, _)| source.end <= at.end);
            let (source, text) = before.map_or((0, 0), |(source, text)| (source.end, text.end));
            planted.pieces.push(Piece {
                at: start..text + (at.end - source),
                mutants: mutants.clone(),
            });
        }
        planted
    }
}

fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(node) => has_let(&node.left) || has_let(&node.right),
        _ => false,
    }
}

/// It runs when the program is compiled, or only in tests.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        matches!(&attribute.meta, syn::Meta::List(list) if list.path.is_ident("cfg") && list.tokens.to_string() == "test")
    })
}

impl<'ast> Visit<'ast> for Planter<'_> {
    fn visit_item_mod(&mut self, node: &'ast syn::ItemMod) {
        if !is_test(&node.attrs) {
            visit::visit_item_mod(self, node);
        }
    }

    fn visit_item_const(&mut self, node: &'ast syn::ItemConst) {
        let outside = std::mem::replace(&mut self.never, true);
        visit::visit_item_const(self, node);
        self.never = outside;
    }

    fn visit_impl_item_const(&mut self, node: &'ast syn::ImplItemConst) {
        let outside = std::mem::replace(&mut self.never, true);
        visit::visit_impl_item_const(self, node);
        self.never = outside;
    }

    fn visit_item_static(&mut self, node: &'ast syn::ItemStatic) {
        let outside = std::mem::replace(&mut self.never, true);
        visit::visit_item_static(self, node);
        self.never = outside;
    }

    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.within(&node.sig, &node.block, |planter| visit::visit_item_fn(planter, node));
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.within(&node.sig, &node.block, |planter| {
            visit::visit_impl_item_fn(planter, node);
        });
    }

    fn visit_expr_binary(&mut self, node: &'ast ExprBinary) {
        self.binary(node);
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast ExprUnary) {
        let at = range(node.span());
        if let UnOp::Not(_) = node.op {
            for (number, mutant) in self.take(Genre::Unary, at.start) {
                let after = format!(" != crate::mutant({number}))");
                self.wrap(&at, 0, "(".to_owned(), after, &[(number, mutant)]);
            }
        }
        visit::visit_expr_unary(self, node);
    }

    fn visit_expr_match(&mut self, node: &'ast syn::ExprMatch) {
        self.matches.push(range(node.span()));
        visit::visit_expr_match(self, node);
        self.matches.pop();
    }

    fn visit_arm(&mut self, node: &'ast Arm) {
        for (number, mutant) in self.take(Genre::Arm, range(node.span()).start) {
            let found = [(number, mutant)];
            if let Some((_, guard)) = &node.guard {
                let (before, after) = (format!("!crate::mutant({number}) && ("), ")".to_owned());
                self.wrap(&range(guard.span()), 2 * OUTER, before, after, &found);
            } else {
                let end = range(node.pat.span()).end;
                self.edit(end..end, (0, i64::MAX), format!(" if !crate::mutant({number})"), &found);
            }
            // Without it the others may not be all.
            if let Some(around) = self.matches.last().cloned() {
                self.node(around, &found);
            }
        }
        if let Some((_, guard)) = &node.guard {
            let at = range(guard.span());
            let found = self.take(Genre::Guard, at.start);
            // cargo-mutants has `true` and `false`.
            let switch = |value: &str, write: fn(usize) -> String| -> String {
                let of = found.iter().filter(|(_, mutant)| mutant.replacement == value);
                of.map(|(number, _)| write(*number)).collect()
            };
            if !found.is_empty() {
                let yes = switch("true", |number| format!("crate::mutant({number}) || "));
                let no = switch("false", |number| format!("!crate::mutant({number}) && "));
                self.wrap(&at, OUTER, format!("{yes}{no}("), ")".to_owned(), &found);
            }
        }
        visit::visit_arm(self, node);
    }

    fn visit_expr_struct(&mut self, node: &'ast ExprStruct) {
        if let Some(base) = &node.rest {
            let (path, base) = (self.text(&range(node.path.span())), self.text(&range(base.span())));
            for field in &node.fields {
                let start = range(field.span()).start;
                let syn::Member::Named(name) = &field.member else {
                    continue;
                };
                for (number, mutant) in self.take(Genre::Field, start) {
                    let head = if field.colon_token.is_none() {
                        format!("{name}: ")
                    } else {
                        String::new()
                    };
                    let before =
                        format!("{head}(if crate::mutant({number}) {{ ({path} {{ ..{base} }}).{name} }} else {{ ");
                    let value = range(field.expr.span());
                    self.wrap(&value, OUTER, before, " })".to_owned(), &[(number, mutant)]);
                }
            }
        }
        visit::visit_expr_struct(self, node);
    }
}
