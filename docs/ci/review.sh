#!/bin/sh
# Review the plans that a branch touches: form, rules, and what they change in seconds and dollars.
#
#   docs/ci/review.sh                                    # against origin/main
#   docs/ci/review.sh --base main --out review.md
#   docs/ci/review.sh --format github                    # findings as annotations of GitHub Actions
#
# Looked at is every plan (of a job or of groups) that the branch adds, changes, renames or removes, and every plan that
# it does not touch but whose inputs it does, or the policy above it: such a plan is stale, or may no longer be allowed.
# Of each: `rlplan fmt --check`, `rlplan check`, and `rlplan diff --markdown` against the base. All of it goes into one
# comment file (default: rlplan-review.md), which begins with a hidden marker by which a CI step finds its own earlier
# comment. In GitHub Actions the number of plans is the step's output `plans`.
#
# Exit codes: 0 every plan is canonical and has no finding, 1 some has not, 2 the review could not be made.
# Needs git and rlplan. The base must be there with its history: `fetch-depth: 0` in actions/checkout.
set -eu

base=origin/main out=rlplan-review.md format=text
usage() { echo "usage: review.sh [--base REVISION] [--out FILE] [--format text|github]" >&2; exit 2; }
stop() { echo "error: $*" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --base | --out | --format) [ $# -gt 1 ] || usage ;;
    *) usage ;;
  esac
  case $1 in
    --base) base=$2 ;;
    --out) out=$2 ;;
    --format) format=$2 ;;
  esac
  shift 2
done
case $format in text | github) ;; *) usage ;; esac
command -v git > /dev/null || stop "git is not installed"
command -v rlplan > /dev/null || stop "rlplan is not installed; pip install rlplan"
case $out in /*) ;; *) out=$PWD/$out ;; esac
root=$(git rev-parse --show-toplevel 2> /dev/null) || stop "this folder is in no git repository"
cd "$root"
# What the branch did since it left the base; what happened on the base since then is not the branch's.
from=$(git merge-base "$base" HEAD 2> /dev/null) ||
  stop "no common history with '$base'; fetch it (actions/checkout: fetch-depth: 0), or name another --base"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 2' HUP INT TERM

MARK='^rlplan(_groups)?[[:blank:]]*:' # of a plan; jobs, clusters and profiles have other marks
LIMIT=55000                           # bytes; GitHub takes comments of 65,536 characters

# STATUS <tab> PATH [<tab> NEW PATH] of every file that differs between the base and the working tree.
git -c core.quotePath=false diff --name-status --find-renames "$from" -- > "$work/changed"
cut -f 2- "$work/changed" | tr '\t' '\n' | sort -u > "$work/names"

is_plan() { [ -f "$1" ] && grep -Eq "$MARK" "$1"; }

# Paths of a plan's inputs, from the root of the repository.
inputs_of() {
  awk -v folder="$(dirname "$1")" '
    /^[^ #]/ { inside = /^inputs:/ }
    inside && match($0, /path:[ ]*("[^"]*"|[^,} ][^,}]*)/) {
      path = substr($0, RSTART + 5, RLENGTH - 5)
      gsub(/^[ "]+|[ "]+$/, "", path)
      n = split(folder "/" path, part, "/"); m = 0
      for (i = 1; i <= n; i++) {
        if (part[i] == ".." && m > 0 && kept[m] != "..") m--
        else if (part[i] != "." && part[i] != "") kept[++m] = part[i]
      }
      path = ""
      for (i = 1; i <= m; i++) path = path (i > 1 ? "/" : "") kept[i]
      print path
    }' "$1"
}

# Whether the branch changed an input of a plan, or a policy in its folder or above.
touched_beside() {
  inputs_of "$1" | grep -Fxq -f "$work/names" && return 0
  folder=$(dirname "$1")
  while :; do
    case $folder in .) policy=rlplan.policy.yaml ;; *) policy=$folder/rlplan.policy.yaml ;; esac
    grep -Fxq -e "$policy" "$work/names" && return 0
    [ "$folder" != . ] || return 1
    folder=$(dirname "$folder")
  done
}

# OLD PATH <tab> NEW PATH of each plan to look at; an empty side is a plan that is new, or gone.
: > "$work/plans"
while IFS='	' read -r status old new; do
  case $status in
    D) if git show "$from:$old" | grep -Eq "$MARK"; then printf '%s\t\n' "$old"; fi ;;
    A) if is_plan "$old"; then printf '\t%s\n' "$old"; fi ;;
    R*) if is_plan "$new"; then printf '%s\t%s\n' "$old" "$new"; fi ;;
    C*) if is_plan "$new"; then printf '\t%s\n' "$new"; fi ;;
    *) if is_plan "$old"; then printf '%s\t%s\n' "$old" "$old"; fi ;;
  esac
done < "$work/changed" > "$work/plans"
git -c core.quotePath=false ls-files -- '*.yaml' '*.yml' | while IFS= read -r path; do
  if is_plan "$path" && ! grep -Fxq -e "$path" "$work/names" && touched_beside "$path"; then
    printf '%s\t%s\n' "$path" "$path"
  fi
done >> "$work/plans"

# Text as the value of a workflow command, so that a file's name ends none and begins none.
escaped() { printf '%s' "$1" | sed -e 's/%/%25/g' -e 's/:/%3A/g' -e 's/,/%2C/g'; }

# A file as a block that its text cannot end, for the comment.
quoted() { echo; cut -c 1-500 "$1" | head -n 20 | sed 's/^/    /'; echo; }

tab=$(printf '\t')
plans=0 failed=0
: > "$work/body"
while IFS= read -r line; do
  old=${line%%"$tab"*} new=${line#*"$tab"}
  name=${new:-$old} faults=''
  plans=$((plans + 1))
  : > "$work/found"
  if [ -n "$new" ]; then
    rlplan fmt --check "$new" > "$work/fmt" 2>&1 || faults="not canonical"
    if [ -n "$faults" ]; then
      cat "$work/fmt" >> "$work/found"
      [ "$format" = text ] || printf '::error file=%s,line=1,title=rlplan fmt::not canonical; run rlplan fmt\n' "$(escaped "$new")"
    fi
    if ! rlplan check "$new" > "$work/check" 2>&1; then
      faults="${faults:+$faults, }findings"
      cat "$work/check" >> "$work/found"
      [ "$format" = text ] || rlplan check --format github "$new" || :
    fi
  fi
  before=none
  if [ -n "$old" ]; then before=$from:$old; fi
  # The base's plan may be of a format that this version of rlplan no longer reads; the new one is shown all the same.
  rlplan diff --markdown "$before" "${new:-none}" > "$work/diff" 2> "$work/error" || {
    cat "$work/error" >> "$work/found"
    rlplan diff --markdown none "${new:-none}" > "$work/diff" 2> /dev/null || : > "$work/diff"
  }
  [ -z "$faults" ] || failed=$((failed + 1))
  # No line begins with text of a file, which might be a workflow command.
  printf 'plan %s: %s\n' "$name" "${faults:-ok}"
  sed 's/^/  | /' "$work/found"
  {
    echo
    if [ -s "$work/diff" ]; then sed 1d "$work/diff"; else echo "### \`$name\`"; fi
    if [ -n "$faults" ]; then printf '\n**Does not pass: %s**\n' "$faults"; fi
    if [ -s "$work/found" ]; then quoted "$work/found"; fi
  } > "$work/part"
  if [ $(($(wc -c < "$work/body") + $(wc -c < "$work/part"))) -le $LIMIT ]; then
    cat "$work/part" >> "$work/body"
  else
    echo "$name" >> "$work/left"
  fi
done < "$work/plans"

{
  echo '<!-- rlplan review -->'
  case $plans in
    0) echo "No plan differs from \`$base\`." ;;
    *) echo "**rlplan:** $plans plan(s) reviewed against \`$base\`, $failed of them do not pass." ;;
  esac
  cat "$work/body"
  if [ -f "$work/left" ]; then
    printf '\nLeft out, since a comment ends somewhere: %s plan(s); the log has their findings.\n' "$(wc -l < "$work/left")"
  fi
} > "$out"
echo "$plans plan(s) against $base, $failed do not pass; the comment is in $out"
if [ -n "${GITHUB_OUTPUT:-}" ]; then echo "plans=$plans" >> "$GITHUB_OUTPUT"; fi
[ "$failed" -eq 0 ] || exit 1
