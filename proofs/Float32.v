(** How far float32 evaluations of sums of products err (docs/arithmetic.md, 3 and 4).

    An evaluation is an [expression]: leaves that are products of stored numbers, sums, and roundings to float32. Each
    leaf is off by the roundings of its factors and of their product. [cost] counts roundings, each weighed with a bound of
    what is rounded; [evaluation_error] says that the whole is off by at most u·cost, but for a factor (1 + u)^depth
    and what underflows. *)

From Coq Require Import ZArith Reals Lia Lra Psatz.
From Flocq Require Import Core Relative.
Open Scope R_scope.

Definition u : R := / 16777216. (* 2^-24, the unit roundoff of float32 *)
Definition underflow : R := bpow radix2 (-100).
(* Half the smallest float32, 2^-150, and room for units: what is counted in steps was rounded in other units. *)
Definition float32 (choice : Z -> bool) (x : R) : R := round radix2 (FLT_exp (-149) 24) (Znearest choice) x.

Lemma u_value : u = / 2 * bpow radix2 (- (24) + 1).
Proof. unfold u. simpl. lra. Qed.

Lemma u_positive : 0 < u.
Proof. unfold u. lra. Qed.

Lemma underflow_positive : 0 < underflow.
Proof. apply bpow_gt_0. Qed.

(** [stands_for x y]: y is what one rounding makes of x, in whatever unit up to 2^50 steps the rounding happened. *)
Definition stands_for (x y : R) : Prop := Rabs (y - x) <= u * Rabs x + underflow.

Lemma float32_error choice unit x : 0 < unit <= bpow radix2 50 -> stands_for x (unit * float32 choice (x / unit)).
Proof.
intros [some few]. unfold stands_for.
destruct (error_N_FLT radix2 (-149) 24 eq_refl choice (x / unit)) as (eps & eta & small & tiny & _ & result).
unfold float32. rewrite result.
replace (unit * (x / unit * (1 + eps) + eta) - x) with (x * eps + unit * eta) by (field; lra).
rewrite <- u_value in small.
assert (Rabs (unit * eta) <= underflow).
{ rewrite Rabs_mult, (Rabs_pos_eq unit) by lra. unfold underflow.
  change (-100)%Z with (50 + -150)%Z. rewrite bpow_plus.
  apply Rmult_le_compat; [lra | apply Rabs_pos | exact few |].
  eapply Rle_trans; [exact tiny |]. apply Req_le. change (-150)%Z with (-1 + -149)%Z. rewrite bpow_plus. reflexivity. }
eapply Rle_trans; [apply Rabs_triang |]. rewrite Rabs_mult, (Rmult_comm u).
apply Rplus_le_compat; [apply Rmult_le_compat_l; [apply Rabs_pos | exact small] | assumption].
Qed.

(** Multiplying with a stored factor instead of the factor is one rounding, too. *)
Lemma stored_factor_error choice factor x :
  bpow radix2 (-126) <= Rabs factor -> stands_for x (x / factor * float32 choice factor).
Proof.
intros normal. pose proof (bpow_gt_0 radix2 (-126)). unfold stands_for.
assert (factor <> 0) by (intros ->; rewrite Rabs_R0 in normal; lra).
replace (x / factor * float32 choice factor - x) with (x / factor * (float32 choice factor - factor)) by (field; assumption).
rewrite Rabs_mult. pose proof (relative_error_N_FLT radix2 (-149) 24 eq_refl choice factor normal) as near.
rewrite <- u_value in near.
assert (Rabs (x / factor) * Rabs (float32 choice factor - factor) <= Rabs (x / factor) * (u * Rabs factor))
  by (apply Rmult_le_compat_l; [apply Rabs_pos | exact near]).
assert (same : Rabs x = Rabs (x / factor) * Rabs factor) by (rewrite <- Rabs_mult; f_equal; field; assumption).
pose proof underflow_positive. rewrite same. lra.
Qed.

(** ** Products: what n roundings leave of a number that none of them brings below the normal ones *)

Definition after (n : nat) (x y : R) : Prop := Rabs (y - x) <= ((1 + u) ^ n - 1) * Rabs x.

Lemma power_at_least_one n : 1 <= (1 + u) ^ n.
Proof. pose proof u_positive. apply pow_R1_Rle. lra. Qed.

Lemma after_none x : after 0 x x.
Proof. unfold after. simpl. rewrite Rminus_diag_eq, Rabs_R0 by reflexivity. pose proof (Rabs_pos x). lra. Qed.

Lemma after_product n m x x' y y' : after n x x' -> after m y y' -> after (n + m) (x * y) (x' * y').
Proof.
unfold after. intros first second. rewrite pow_add, Rabs_mult.
replace (x' * y' - x * y) with ((x' - x) * (y' - y) + (x' - x) * y + x * (y' - y)) by ring.
pose proof (power_at_least_one n). pose proof (power_at_least_one m).
pose proof (Rabs_pos x). pose proof (Rabs_pos y).
pose proof (Rabs_pos (x' - x)). pose proof (Rabs_pos (y' - y)).
eapply Rle_trans; [apply Rabs_triang |].
eapply Rle_trans; [apply Rplus_le_compat_r, Rabs_triang |].
rewrite !Rabs_mult.
set (p := (1 + u) ^ n) in *. set (q := (1 + u) ^ m) in *.
assert (Rabs (x' - x) * Rabs (y' - y) <= ((p - 1) * Rabs x) * ((q - 1) * Rabs y)) by (apply Rmult_le_compat; assumption).
assert (Rabs (x' - x) * Rabs y <= ((p - 1) * Rabs x) * Rabs y) by (apply Rmult_le_compat_r; assumption).
assert (Rabs x * Rabs (y' - y) <= Rabs x * ((q - 1) * Rabs y)) by (apply Rmult_le_compat_l; assumption).
nra.
Qed.

(** Numbers of at least 2^-126 are normal; zero stays zero. *)
Lemma after_rounding choice n x y :
  after n x y -> (y = 0 \/ bpow radix2 (-126) <= Rabs y) -> after (S n) x (float32 choice y).
Proof.
unfold after. intros before normal. pose proof u_positive. pose proof (Rabs_pos x). pose proof (power_at_least_one n).
assert (rounding : Rabs (float32 choice y - y) <= u * Rabs y).
{ destruct normal as [-> | normal].
  - unfold float32. rewrite round_0, Rminus_diag_eq, Rabs_R0 by (try reflexivity; apply valid_rnd_N). lra.
  - rewrite u_value. apply (relative_error_N_FLT radix2 (-149) 24 eq_refl). exact normal. }
replace (float32 choice y - x) with ((float32 choice y - y) + (y - x)) by ring.
eapply Rle_trans; [apply Rabs_triang |].
assert (Rabs y <= (1 + u) ^ n * Rabs x).
{ replace y with ((y - x) + x) by ring. eapply Rle_trans; [apply Rabs_triang |]. lra. }
simpl. nra.
Qed.

(** ** Sums *)

Inductive expression : Type :=
  | Leaf (x bound : R) (roundings : nat)  (* the exact number x, at most bound in size, after so many roundings *)
  | Sum (e1 e2 : expression)
  | Rounded (e : expression) (bound : R). (* one rounding more; the exact value of e is at most bound in size *)

Fixpoint exact (e : expression) : R :=
  match e with
  | Leaf x _ _ => x
  | Sum e1 e2 => exact e1 + exact e2
  | Rounded e _ => exact e
  end.

Fixpoint bounded (e : expression) : Prop :=
  match e with
  | Leaf x bound _ => Rabs x <= bound
  | Sum e1 e2 => bounded e1 /\ bounded e2
  | Rounded e bound => bounded e /\ Rabs (exact e) <= bound
  end.

Inductive evaluates : expression -> R -> Prop :=
  | leaf x bound n y : after n x y -> evaluates (Leaf x bound n) y
  | sum e1 e2 y z : evaluates e1 y -> evaluates e2 z -> evaluates (Sum e1 e2) (y + z)
  | rounded e bound y z : evaluates e y -> stands_for y z -> evaluates (Rounded e bound) z.

Fixpoint cost (e : expression) : R :=
  match e with
  | Leaf _ bound n => INR n * bound
  | Sum e1 e2 => cost e1 + cost e2
  | Rounded e bound => cost e + bound
  end.

Fixpoint depth (e : expression) : nat :=
  match e with
  | Leaf _ _ n => n
  | Sum e1 e2 => Nat.max (depth e1) (depth e2)
  | Rounded e _ => S (depth e)
  end.

Fixpoint nodes (e : expression) : nat :=
  match e with
  | Leaf _ _ _ => 0
  | Sum e1 e2 => nodes e1 + nodes e2
  | Rounded e _ => S (nodes e)
  end.

Lemma power_increases n m : (n <= m)%nat -> (1 + u) ^ n <= (1 + u) ^ m.
Proof. intros. pose proof u_positive. apply Rle_pow; [lra | assumption]. Qed.

(** (1 + u)^n - 1 <= n·u·(1 + u)^n *)
Lemma power_minus_one n : (1 + u) ^ n - 1 <= INR n * u * (1 + u) ^ n.
Proof.
pose proof u_positive. induction n as [| n step]; [simpl; lra |].
rewrite S_INR. simpl. pose proof (power_at_least_one n). pose proof (pos_INR n).
set (p := (1 + u) ^ n) in *. set (k := INR n) in *.
assert (0 <= k * u) by nra. assert (0 <= k * u * (u * p)) by (apply Rmult_le_pos; nra).
assert (p - 1 + u * p <= k * u * p + u * p) by lra. nra.
Qed.

Lemma cost_positive e : bounded e -> 0 <= cost e.
Proof.
induction e as [x bound n | e1 Left e2 Right | e Inner bound]; simpl.
- intros. pose proof (pos_INR n). pose proof (Rabs_pos x). nra.
- intros [? ?]. pose proof (Left H). pose proof (Right H0). lra.
- intros [? ?]. pose proof (Inner H). pose proof (Rabs_pos (exact e)). lra.
Qed.

Theorem evaluation_error e y :
  bounded e -> evaluates e y ->
  Rabs (y - exact e) <= u * (1 + u) ^ depth e * cost e + INR (nodes e) * (1 + u) ^ depth e * underflow.
Proof.
pose proof u_positive as up. pose proof underflow_positive as tiny.
intros known evaluation. induction evaluation as [x bound n y near | e1 e2 y z first First second Second
  | e bound y z inner Inner step]; simpl in *.
- unfold after in near. eapply Rle_trans; [exact near |].
  pose proof (power_minus_one n). pose proof (power_at_least_one n). pose proof (Rabs_pos x). pose proof (pos_INR n).
  apply Rle_trans with (INR n * u * (1 + u) ^ n * bound); [| lra].
  apply Rmult_le_compat; lra.
- destruct known as [boundLeft boundRight]. specialize (First boundLeft). specialize (Second boundRight).
  replace (y + z - (exact e1 + exact e2)) with ((y - exact e1) + (z - exact e2)) by ring.
  eapply Rle_trans; [apply Rabs_triang |].
  pose proof (cost_positive e1 boundLeft). pose proof (cost_positive e2 boundRight).
  pose proof (power_increases (depth e1) _ (Nat.le_max_l (depth e1) (depth e2))) as wider.
  pose proof (power_increases (depth e2) _ (Nat.le_max_r (depth e1) (depth e2))) as wider'.
  rewrite plus_INR. pose proof (pos_INR (nodes e1)). pose proof (pos_INR (nodes e2)).
  set (p := (1 + u) ^ Nat.max (depth e1) (depth e2)) in *.
  assert (u * (1 + u) ^ depth e1 * cost e1 <= u * p * cost e1) by (apply Rmult_le_compat_r; nra).
  assert (u * (1 + u) ^ depth e2 * cost e2 <= u * p * cost e2) by (apply Rmult_le_compat_r; nra).
  assert (INR (nodes e1) * (1 + u) ^ depth e1 * underflow <= INR (nodes e1) * p * underflow)
    by (apply Rmult_le_compat_r; nra).
  assert (INR (nodes e2) * (1 + u) ^ depth e2 * underflow <= INR (nodes e2) * p * underflow)
    by (apply Rmult_le_compat_r; nra).
  lra.
- destruct known as [known size]. specialize (Inner known).
  unfold stands_for in step.
  replace (z - exact e) with ((z - y) + (y - exact e)) by ring.
  eapply Rle_trans; [apply Rabs_triang |].
  assert (Rabs y <= Rabs (y - exact e) + bound).
  { replace y with ((y - exact e) + exact e) at 1 by ring. eapply Rle_trans; [apply Rabs_triang |]. lra. }
  pose proof (power_at_least_one (depth e)). pose proof (cost_positive e known). pose proof (Rabs_pos (exact e)).
  pose proof (pos_INR (nodes e)) as count. replace (match nodes e with 0%nat => 1 | S _ => INR (nodes e) + 1 end)
    with (INR (nodes e) + 1) by (destruct (nodes e); simpl; lra).
  set (p := (1 + u) ^ depth e) in *. set (q := Rabs (y - exact e)) in *.
  assert (u * Rabs y <= u * (q + bound)) by (apply Rmult_le_compat_l; lra).
  assert (1 <= (1 + u) * p) by nra.
  assert (1 * (u * bound) <= ((1 + u) * p) * (u * bound)) by (apply Rmult_le_compat_r; [nra | assumption]).
  assert (1 * underflow <= ((1 + u) * p) * underflow) by (apply Rmult_le_compat_r; lra).
  assert ((1 + u) * q <= (1 + u) * (u * p * cost e + INR (nodes e) * p * underflow)) by (apply Rmult_le_compat_l; lra).
  lra.
Qed.
