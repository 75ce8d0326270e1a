(** Sums that are exact by themselves: those of the simulation, in floats and in any order, and those of weights of four bits
    (docs/arithmetic.md, 2 and 4). *)

From Coq Require Import ZArith Reals List Lia Lra.
From Flocq Require Import Core.
From Intact Require Import Float32 Integers Main.
Import ListNotations.

(** ** Floats that hold integers: what training and the simulation add up *)

Section Floats.

(** 24 bits for float32, 53 for float64; nothing is assumed of how ties go. *)
Variables (precision least : Z) (choice : Z -> bool).
Hypothesis some_bits : (0 < precision)%Z.
Hypothesis whole : (least <= 0)%Z.

Definition rounded_sum (x : R) : R := round radix2 (FLT_exp least precision) (Znearest choice) x.

Lemma integer_is_held n : (Z.abs n < 2 ^ precision)%Z -> rounded_sum (IZR n) = IZR n.
Proof.
intros small. unfold rounded_sum. apply round_generic; [apply valid_rnd_N |].
apply generic_format_FLT. exists (Float radix2 n 0); [unfold F2R; simpl; lra | exact small | exact whole].
Qed.

(** An order in which products of a weight and an integer are added: rounded one by one, or fused with the sum so far. *)
Inductive order := Product (w x : Z) | Sum (a b : order) | Fused (w x : Z) (rest : order).

Fixpoint value (o : order) : Z :=
  match o with Product w x => w * x | Sum a b => value a + value b | Fused w x rest => w * x + value rest end.

Fixpoint size (o : order) : Z :=
  match o with
  | Product w x => Z.abs (w * x)
  | Sum a b => size a + size b
  | Fused w x rest => Z.abs (w * x) + size rest
  end.

Fixpoint computed (o : order) : R :=
  match o with
  | Product w x => rounded_sum (IZR w * IZR x)
  | Sum a b => rounded_sum (computed a + computed b)
  | Fused w x rest => rounded_sum (IZR w * IZR x + computed rest)
  end.

Lemma value_size o : (Z.abs (value o) <= size o)%Z.
Proof. induction o; simpl; lia. Qed.

Lemma size_positive o : (0 <= size o)%Z.
Proof. pose proof (value_size o). lia. Qed.

Theorem exact_in_any_order o : (size o < 2 ^ precision)%Z -> computed o = IZR (value o).
Proof.
induction o as [w x | a one b other | w x rest step]; simpl; intros small.
- rewrite <- mult_IZR. apply integer_is_held. exact small.
- pose proof (size_positive a). pose proof (size_positive b). pose proof (value_size a). pose proof (value_size b).
  rewrite one, other by lia. rewrite <- plus_IZR. apply integer_is_held. lia.
- pose proof (size_positive rest). pose proof (value_size rest).
  rewrite step by lia. rewrite <- mult_IZR, <- plus_IZR. apply integer_is_held. lia.
Qed.

End Floats.

(** The simulation multiplies such a sum in float32: that is the form [exact_sum_form], whatever the order of the sum was. *)
Theorem simulated_product choice c1 c2 c3 o m :
  (size o < 2 ^ 24)%Z ->
  float32 c3 (computed 24 (-149) choice o * float32 c2 m) = float32 c3 (float32 c1 (IZR (value o)) * float32 c2 m).
Proof.
intros small. rewrite (exact_in_any_order 24 (-149) choice) by (lia || exact small).
pose proof (value_size o) as bound. unfold float32 at 3.
rewrite (integer_is_held 24 (-149) c1) by lia. reflexivity.
Qed.

(** ** Weights of four bits *)

Open Scope Z_scope.

(** Two weights in a byte, the first in the low half. *)
Definition packed (first second : Z) : Z := (first + 8) + 16 * (second + 8).

Theorem unpacked first second :
  -8 <= first <= 7 -> -8 <= second <= 7 ->
  0 <= packed first second <= 255 /\
  packed first second mod 16 - 8 = first /\ packed first second / 16 - 8 = second.
Proof.
unfold packed. intros.
replace (first + 8 + 16 * (second + 8)) with ((first + 8) + (second + 8) * 16) by lia.
rewrite Z.mod_add, Z.div_add, Z.mod_small, Z.div_small by lia. lia.
Qed.

(** A kernel leaves the weights in the high halves of bytes, sixteen times as large, and shifts the sum. *)
Definition times_16 (products : list (Z * Z)) : list (Z * Z) := map (fun p => (16 * fst p, snd p)) products.

Lemma times_16_sum products : Integers.sum (times_16 products) = 16 * Integers.sum products.
Proof.
induction products as [| p rest step]; [reflexivity |].
unfold Integers.sum, times_16 in *. cbn [map fold_right fst snd] in *. rewrite step. lia.
Qed.

Lemma times_16_size products : sum_of_sizes (times_16 products) = 16 * sum_of_sizes products.
Proof.
induction products as [| p rest step]; [reflexivity |].
unfold sum_of_sizes, times_16 in *. cbn [map fold_right fst snd] in *. rewrite step, Z.abs_mul. lia.
Qed.

Theorem shifted_sum products : Z.shiftr (Integers.sum (times_16 products)) 4 = Integers.sum products.
Proof.
rewrite times_16_sum, Z.shiftr_div_pow2 by lia. change (2 ^ 4) with 16.
rewrite Z.mul_comm. apply Z.div_mul. lia.
Qed.

Definition four_bits (products : list (Z * Z)) : Prop := Forall (fun p => Z.abs (fst p) <= 8) products.

Lemma four_bits_size products : four_bits products -> sum_of_sizes products <= 8 * Z.of_nat (length products).
Proof.
induction 1 as [| p rest small others step]; [simpl; lia |].
unfold sum_of_sizes in *. cbn [fold_right length]. lia.
Qed.

(** [NIBBLE_DEPTH] of native/engine/nibbles.h: so many products never leave int32, however they are ordered and cut. *)
Theorem nibble_depth products part rest :
  fits products -> four_bits products -> Z.of_nat (length products) <= 65536 -> products = part ++ rest ->
  Z.abs (Integers.sum (times_16 part)) < 2 ^ 31.
Proof.
intros bytes small few ->. pose proof (four_bits_size _ small) as bound.
apply Forall_app in bytes. destruct bytes as [inside _].
pose proof (sum_bound part inside). rewrite sizes_append in bound. pose proof (Integers.sizes_positive rest).
rewrite times_16_sum. lia.
Qed.

(** Pairs of such weights are far from int16's ends: kernels without VNNI do not saturate. *)
Theorem nibbles_do_not_saturate v w x y :
  Z.abs v <= 8 -> Z.abs w <= 8 -> 0 <= x <= 255 -> 0 <= y <= 255 -> -32768 <= v * x + w * y <= 32767.
Proof. intros. apply (no_saturation v w 8 8); lia. Qed.

(** Where sums stay sixteen times as large, their multiplier is a sixteenth: three roundings, as before. *)
Theorem nibble_leaf c1 c2 c3 (acc : Z) m :
  (bpow radix2 (-90) <= Rabs (m / 16))%R ->
  after 3 (IZR acc * m) (float32 c3 (float32 c1 (IZR (16 * acc)) * float32 c2 (m / 16))).
Proof.
intros large. replace (IZR acc * m)%R with (IZR (16 * acc) * (m / 16))%R by (rewrite mult_IZR; field).
apply product_leaf. exact large.
Qed.

Print Assumptions exact_in_any_order.
Print Assumptions nibble_leaf.
Print Assumptions unpacked.
Print Assumptions nibble_depth.
